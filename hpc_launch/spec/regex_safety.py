"""Regular expressions of other people: which of them may search for ever in a text that does not match.

Python's `re` goes back and tries again, without a limit of time. What multiplies the ways is a repetition in which a
text can be split in more than one way: another repetition inside, alternatives that begin alike, or several wide
repetitions side by side. Told from the parsed expression, so that grouping and spelling do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any

ENDLESS = "a repetition inside a repetition may take for ever"
"""What is said of a pattern of which `may_explode` is true."""
MANY = 12
"""A repetition of up to so many times multiplies too little to matter."""
SIDE_BY_SIDE = 3
"""So many repetitions of the same with nothing fixed between them are too many."""
ANY = "any"

_PARSER: Any = import_module("re._parser" if hasattr(re, "_parser") else "sre_parse")
_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d", "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_SPACE": r"\s", "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w", "CATEGORY_NOT_WORD": r"\W",
}  # fmt: skip
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT"})


def may_explode(pattern: str) -> bool:
    """Whether a search for `pattern` may take for ever. False for what is no regular expression."""
    try:
        return _sequence(_PARSER.parse(pattern))
    except RecursionError:
        return True
    except (re.error, OverflowError):
        return False


def _sequence(items: Iterable[tuple[Any, Any]]) -> bool:
    alike: list[str] = []
    for code, value in items:
        name = str(code)
        if name in _REPEATS and value[1] > MANY:
            kind = _kind(value[2])
            alike = [*alike, kind] if alike and (kind == alike[-1] or ANY in {kind, alike[-1]}) else [kind]
            if _splits(value[2]) or (len(alike) >= SIDE_BY_SIDE and value[0] != value[1]):
                return True
        elif name not in {"AT", "ASSERT", "ASSERT_NOT"} and not (name in _REPEATS and value[0] == 0):
            alike = []
        if any(_sequence(part) for part in _parts(name, value)):
            return True
    return False


def _kind(body: Any) -> str:
    """What a repetition takes; all that takes nearly everything is of one kind."""
    if len(body) != 1:
        return str(body)
    code, value = body[0]
    wide = str(code) in {"ANY", "NOT_LITERAL"} or (str(code) == "IN" and str(value[0][0]) == "NEGATE")
    return ANY if wide else str(body)


def _splits(items: Iterable[tuple[Any, Any]]) -> bool:
    """Whether what is repeated can take one text in more than one way."""
    loose: list[tuple[Any, set[str]]] = []  # the repetitions in it, each with the letters up to the next one
    first: set[str] = set()
    for code, value in items:
        name = str(code)
        if name == "LITERAL":
            if not chr(value).isalpha():  # letters may stand for their other case
                (loose[-1][1] if loose else first).add(chr(value))
        elif name in _REPEATS and value[0] != value[1]:
            loose.append((value[2], set()))
        elif (name == "BRANCH" and not _begin_apart(value[1])) or any(map(_splits, _parts(name, value))):
            return True
    if loose:
        loose[-1][1].update(first)  # what ends a turn and what begins the next one stand side by side
    # `(?:\d+\.)*`: behind the digits stands a dot, which they cannot take, so that their end is no choice; read
    # backwards, before them stands one.
    bodies = [body for body, _ in loose]
    gaps = [marks for _, marks in loose]
    ends = all(any(not _may_take(body, mark) for mark in marks) for body, marks in zip(bodies, gaps, strict=True))
    after = zip([*bodies[1:], *bodies[:1]], gaps, strict=True)
    return not ends and not all(any(not _may_take(body, mark) for mark in marks) for body, marks in after)


def _may_take(body: Any, mark: str) -> bool:
    """Whether what is repeated may take this character; true where it is not one plain set of characters."""
    if len(body) != 1:
        return True
    code, value = str(body[0][0]), body[0][1]
    if code in {"LITERAL", "NOT_LITERAL"}:
        return (chr(value) == mark) == (code == "LITERAL")
    if code != "IN":
        return True
    inside = any(_in_set(str(kind), what, mark) for kind, what in value)
    return bool(inside != (str(value[0][0]) == "NEGATE"))


def _in_set(kind: str, what: Any, mark: str) -> bool:
    if kind == "LITERAL":
        return chr(what) == mark
    if kind == "RANGE":
        return int(what[0]) <= ord(mark) <= int(what[1])
    return kind == "CATEGORY" and re.match(_CATEGORIES.get(str(what), "(?s:.)"), mark) is not None


def _begin_apart(branches: Iterable[Any]) -> bool:
    """Whether fixed letters at its beginning tell which alternative a text is."""
    starts = sorted("".join(_letters(branch)) for branch in branches)
    return all(not after.startswith(before) for before, after in pairwise(starts))


def _letters(branch: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    for code, value in branch:
        if str(code) != "LITERAL":
            return
        yield chr(value).lower()


def _parts(name: str, value: Any) -> list[Any]:
    """The sequences inside one part of an expression; an atomic group never goes back into what it took."""
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
