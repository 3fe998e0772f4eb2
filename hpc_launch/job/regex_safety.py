"""Detect regular expressions from users that may take too long on text that does not match.

Python's `re` backtracks without a time limit. The number of ways grows exponentially when repeated text can be matched
in more than one way: a repetition inside a repetition, alternatives with a common prefix, or several wide repetitions
next to each other. It grows with a power of the length when wide repetitions follow each other, whatever is between
them. We analyse the parsed expression, so grouping and spelling do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any

from hpc_launch.base.time_limit import SearchTime

BACKTRACKING_MESSAGE = "repetitions that can match the same text may never finish"
"""Message for a pattern for which `may_backtrack_forever` is true."""
LIMIT_S = 2.0
"""Seconds for all comparisons of a profile."""
MAX_SAFE_REPEATS = 12
"""Up to this many iterations, a repetition multiplies too little to matter."""
MAX_ADJACENT = 3
"""This many similar repetitions with nothing fixed between them are rejected."""
MAX_WAYS = 5000
"""In at most this many ways, limited repetitions may match one text."""
MAX_MOVABLE = 3
"""So many repetitions may match parts of one text whose borders can move, as in `.*a.*a.*a`. The time grows with this
power of the length."""
MAX_LENGTH = 400
"""Repetitions of at most so many characters cost little on the lines of a log, if there are few."""
WIDE = "any"

_PARSER: Any = import_module("re._parser" if hasattr(re, "_parser") else "sre_parse")
_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d", "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_SPACE": r"\s", "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w", "CATEGORY_NOT_WORD": r"\W",
}  # fmt: skip
_ALL = frozenset(map(chr, range(128)))
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT"})


def may_backtrack_forever(pattern: str, *, longest: int = MAX_LENGTH) -> bool:
    """Whether a search for `pattern` may take too long. False for an invalid regular expression.

    A repetition of more than `longest` characters counts as movable. Patterns of a profile are compared with short
    values and need no long ones: MAX_SAFE_REPEATS.
    """
    try:
        parsed = _PARSER.parse(pattern)
        few = "{" not in pattern and sum(map(pattern.count, "*+")) <= MAX_MOVABLE  # most patterns: that is quick
        return _is_unsafe(parsed) or (not few and _most_movable(parsed, longest)[0] > MAX_MOVABLE)
    except RecursionError:
        return True
    except (re.error, OverflowError):
        return False


def matches_in_time(pattern: str, text: str, time: SearchTime | None = None) -> bool:
    """Whether a pattern of somebody else matches the whole text. False if it is invalid or takes too long.

    `time` is that of all comparisons together, by default LIMIT_S for this one.
    """
    try:
        return (time or SearchTime(LIMIT_S)).spend(lambda: re.fullmatch(pattern, text)) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def _is_unsafe(items: Iterable[tuple[Any, Any]]) -> bool:
    adjacent: list[str] = []
    same, ways = "", 1
    for code, value in _without_groups(items):
        name = str(code)
        if name in _REPEATS and value[0] < value[1] <= MAX_SAFE_REPEATS:
            matched = _matched_set(value[2])
            ways = (ways if matched == same else 1) * (value[1] - value[0] + 1)
            same = matched
            if ways > MAX_WAYS:
                return True
        if name in _REPEATS and value[1] > MAX_SAFE_REPEATS:
            matched = _matched_set(value[2])
            adjacent = (
                [*adjacent, matched]
                if adjacent and (matched == adjacent[-1] or WIDE in {matched, adjacent[-1]})
                else [matched]
            )
            if _is_ambiguous(value[2]) or (len(adjacent) >= MAX_ADJACENT and value[0] != value[1]):
                return True
        elif name not in {"AT", "ASSERT", "ASSERT_NOT"} and not (name in _REPEATS and value[0] == 0):
            adjacent = []
        if name in _REPEATS and 1 < value[1] <= MAX_SAFE_REPEATS and _multiplies(value[2], value[1]):
            return True
        if any(_is_unsafe(part) for part in _subpatterns(name, value)):
            return True
    return False


def _most_movable(items: Iterable[tuple[Any, Any]], longest: int) -> tuple[int, frozenset[str]]:
    """The greatest number of long repetitions in a row such that the text can move from one into the next, and the
    characters of all long repetitions."""
    most = count = 0
    last: frozenset[str] = frozenset()
    everything: frozenset[str] = frozenset()
    for code, value in _without_groups(items):
        name = str(code)
        inside = [_most_movable(part, longest) for part in _subpatterns(name, value)]
        weight = max((number for number, _ in inside), default=0)
        characters = frozenset[str]().union(*(found for _, found in inside))
        if name in _REPEATS:
            weight *= value[1] if value[1] <= MAX_LENGTH else 1
            if value[1] > longest and value[0] != value[1]:
                weight, characters = max(weight, 1), characters | _characters(value[2])
        everything |= characters
        most = max(most, weight)
        if name in {"AT", "ASSERT", "ASSERT_NOT"}:
            continue
        if weight:
            count = count + weight if last & characters else weight
            last = characters
        elif name not in _REPEATS or value[0] > 0:
            between = _characters(value[2] if name in _REPEATS else [(code, value)])
            count, last = (count, last) if between & last else (0, frozenset())
        most = max(most, count)
    return most, everything


def _characters(body: Any) -> frozenset[str]:
    """The ASCII characters that an element may match; all where that is not known."""
    return frozenset(character for character in _ALL if _may_match(body, character))


def _without_groups(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """The elements of an expression, with those of its groups in their place."""
    for code, value in items:
        if str(code) == "SUBPATTERN":
            yield from _without_groups(value[-1])
        else:
            yield code, value


def _multiplies(body: Any, times: int) -> bool:
    """Whether a few repetitions of the expression can match one text in too many ways."""
    if not _is_ambiguous(body):
        return False
    return (times >= MAX_ADJACENT and _is_unbounded(body)) or _ways(body) ** times > MAX_WAYS


def _is_unbounded(items: Iterable[tuple[Any, Any]]) -> bool:
    return any(
        (str(code) in _REPEATS and value[1] > MAX_SAFE_REPEATS)
        or any(map(_is_unbounded, _subpatterns(str(code), value)))
        for code, value in items
    )


def _ways(items: Iterable[tuple[Any, Any]]) -> int:
    """An upper bound of the number of ways to match one text, at most MAX_WAYS + 1. Repetitions beyond
    MAX_SAFE_REPEATS count as that many."""
    product = 1
    for code, value in items:
        name = str(code)
        parts = [_ways(part) for part in _subpatterns(name, value)]
        if name == "BRANCH":
            ways = sum(parts)
        elif name in _REPEATS:
            least, most = (min(bound, MAX_SAFE_REPEATS) for bound in value[:2])
            ways = (most - least + 1) * parts[0] ** max(most, 1)
        else:
            ways = max(parts, default=1)
        product = min(product * max(ways, 1), MAX_WAYS + 1)
    return product


def _matched_set(body: Any) -> str:
    """Key of the characters that a repetition matches; everything that matches nearly any character has the same
    key."""
    if len(body) != 1:
        return str(body)
    code, value = body[0]
    is_wide = str(code) in {"ANY", "NOT_LITERAL"} or (str(code) == "IN" and str(value[0][0]) == "NEGATE")
    return WIDE if is_wide else str(body)


def _is_ambiguous(items: Iterable[tuple[Any, Any]]) -> bool:
    """Whether the repeated expression can match one text in more than one way."""
    repeats: list[tuple[Any, set[str]]] = []  # each repetition, with the literals up to the next one
    first: set[str] = set()
    for code, value in items:
        name = str(code)
        if name == "LITERAL":
            if not chr(value).isalpha():  # a letter may also match its other case
                (repeats[-1][1] if repeats else first).add(chr(value))
        elif name in _REPEATS and value[0] != value[1]:
            repeats.append((value[2], set()))
        elif (name == "BRANCH" and not _have_distinct_prefixes(value[1])) or any(
            map(_is_ambiguous, _subpatterns(name, value))
        ):
            return True
    if repeats:
        repeats[-1][1].update(first)  # the end of one iteration is adjacent to the start of the next
    # `(?:\d+\.)*`: the digits are followed by a dot, which they cannot match, so there is only one way to end them.
    # The same holds for a dot before the digits, read backwards.
    bodies = [body for body, _ in repeats]
    gaps = [characters for _, characters in repeats]
    ends = all(
        any(not _may_match(body, character) for character in characters)
        for body, characters in zip(bodies, gaps, strict=True)
    )
    after = zip([*bodies[1:], *bodies[:1]], gaps, strict=True)
    return not ends and not all(
        any(not _may_match(body, character) for character in characters) for body, characters in after
    )


def _may_match(body: Any, character: str) -> bool:
    """Whether the repeated expression may match this character. True unless it is a single set of characters."""
    if len(body) != 1:
        return True
    code, value = str(body[0][0]), body[0][1]
    if code in {"LITERAL", "NOT_LITERAL"}:
        return (chr(value) == character) == (code == "LITERAL")
    if code != "IN":
        return True
    inside = any(_in_set(str(kind), operand, character) for kind, operand in value)
    return bool(inside != (str(value[0][0]) == "NEGATE"))


def _in_set(kind: str, operand: Any, character: str) -> bool:
    if kind == "LITERAL":
        return chr(operand) == character
    if kind == "RANGE":
        return int(operand[0]) <= ord(character) <= int(operand[1])
    return kind == "CATEGORY" and re.match(_CATEGORIES.get(str(operand), "(?s:.)"), character) is not None


def _have_distinct_prefixes(branches: Iterable[Any]) -> bool:
    """Whether literal prefixes decide which alternative matches."""
    starts = sorted("".join(_literal_prefix(branch)) for branch in branches)
    return all(not after.startswith(before) for before, after in pairwise(starts))


def _literal_prefix(branch: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    for code, value in branch:
        if str(code) != "LITERAL":
            return
        yield chr(value).lower()


def _subpatterns(name: str, value: Any) -> list[Any]:
    """Sequences inside one element of an expression. Atomic groups have none, because they never backtrack."""
    if name == "SUBPATTERN":
        return [value[-1]]
    if name in _REPEATS:
        return [value[2]]
    if name == "BRANCH":
        return list(value[1])
    if name in {"ASSERT", "ASSERT_NOT"}:
        return [value[1]]
    if name == "GROUPREF_EXISTS":
        return [part for part in value[1:] if part is not None]
    return []
