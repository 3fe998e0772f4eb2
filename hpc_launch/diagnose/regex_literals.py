"""The literal words that every match of a regular expression contains: a fast scan of a log searches for them first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

SHORTEST = 3
"""Minimum number of letters: shorter words occur in every line."""

_MOST = 40
"""Maximum number of words of one part."""

_PARSER: Any = import_module("re._parser" if hasattr(re, "_parser") else "sre_parse")


Words = frozenset[str]
_NOTHING = frozenset({""})


def needed_words(pattern: str) -> Words:
    """Lower-case words of which every match of `pattern` contains at least one; empty where there are none.

    Raises re.error for an invalid regular expression.
    """
    try:
        return _of_sequence(_PARSER.parse(pattern))[1] or frozenset()
    except RecursionError:
        return frozenset()


def _of_sequence(items: Iterable[tuple[Any, Any]]) -> tuple[Words | None, Words | None]:
    """All texts that parts in a row match, None where they are too many; and the best words of which one is needed."""
    choices: list[Words] = []
    whole: Words | None = _NOTHING
    run = _NOTHING
    for texts, needed in _parts(items):
        whole, longer = _joined(whole, texts), _joined(run, texts)
        if longer is not None:
            run = longer
            continue
        choices += [run, *([needed] if needed else [])]
        run = texts if texts is not None else _NOTHING
    good = [choice for choice in (*choices, run) if min(map(len, choice)) >= SHORTEST]
    return whole, max(good, key=_worth) if good else None


def _parts(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Words | None, Words | None]]:
    """The same of each part, with the letters in a row as one."""
    word = ""
    for code, value in getattr(items, "data", items):  # of a SubPattern, whose own iteration is slow
        name = code.name
        letter = _letter(name, value)
        word += letter
        if letter or name in {"AT", "ASSERT", "ASSERT_NOT"}:
            continue  # these have no letters of their own
        if word:
            yield frozenset({word}), None
            word = ""
        yield _of_part(name, value)
    if word:
        yield frozenset({word}), None


def _joined(begins: Words | None, ends: Words | None) -> Words | None:
    """Each text of one part followed by each of the next; None where they are too many."""
    if begins is None or ends is None or len(begins) * len(ends) > _MOST:
        return None
    return frozenset(begin + end for begin in begins for end in ends)


def _of_part(name: str, value: Any) -> tuple[Words | None, Words | None]:
    """The same of one part that is not a letter."""
    if name == "SUBPATTERN":
        return _of_sequence(value[-1])
    if name == "ATOMIC_GROUP":
        return None, _of_sequence(value)[1]
    if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        texts, needed = _of_sequence(value[2])
        optional = texts is not None and tuple(value[:2]) == (0, 1) and name != "POSSESSIVE_REPEAT"
        return (texts | {""} if texts and optional else None), needed if value[0] >= 1 else None
    if name != "BRANCH":
        return None, None
    texts_of, needed_of = zip(*map(_of_sequence, value[1]), strict=True)
    texts = frozenset().union(*texts_of) if None not in texts_of else None
    needed = frozenset().union(*needed_of) if None not in needed_of else None
    return (texts if texts is not None and len(texts) <= _MOST else None), needed


def _letter(name: str, value: Any) -> str:
    """The lower-case letter that this part matches; empty if it is a digit or more than one. `[Tt]` is one letter."""
    letter = chr(value).lower() if name == "LITERAL" else ""
    if name == "IN":
        letters = {chr(number).lower() if code.name == "LITERAL" else "" for code, number in value}
        letter = letters.pop() if len(letters) == 1 else ""
    return "" if letter.isdigit() else letter


_COMMON = re.compile(
    r"loss|grad|train|step|data|model|device|load|output|image|port|length|system|parallel|found|weight|sample|version|"
    r"world|param|batch|avail|link|rank|local|time|shard|file|cuda|gpu|node|process|number|config|state|info|layer|"
    r"memory|epoch|iter|rate|size|total|torch|python|nccl|please|received|checkpoint|instruction|variable|argument|option"
)
"""Words of harmless lines: poor words to search for."""


def _worth(words: Words) -> tuple[int, int]:
    """How selective a set of words is; larger is better."""
    return min(_rarity(word) for word in words), -len(words)


@cache
def _rarity(word: str) -> int:
    length = min(12, len(word))
    return length - 8 if _COMMON.search(word) and " " not in word.strip() and len(word) < 14 else length
