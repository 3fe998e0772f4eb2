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

MANY = 12
"""A repetition of up to so many times multiplies too little to matter."""
SIDE_BY_SIDE = 3
"""So many repetitions of the same with nothing fixed between them are too many."""
ANY = "any"

_PARSER: Any = import_module("re._parser" if hasattr(re, "_parser") else "sre_parse")
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
    for code, value in items:
        name = str(code)
        if name in _REPEATS and value[0] != value[1]:
            return True
        if name == "BRANCH" and not _begin_apart(value[1]):
            return True
        if any(_splits(part) for part in _parts(name, value)):
            return True
    return False


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
