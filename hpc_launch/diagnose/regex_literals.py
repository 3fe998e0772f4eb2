"""The literal words that every match of a regular expression contains: a fast scan of a log searches for them first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

SHORTEST = 3
"""Minimum number of letters: shorter words occur in every line."""

_MOST = 40
"""Maximum number of words of one part."""

_PARSER: Any = import_module("re._parser" if hasattr(re, "_parser") else "sre_parse")


def needed_words(pattern: str) -> frozenset[str]:
    """Lower-case words of which every match of `pattern` contains at least one; empty where there are none.

    Raises re.error for an invalid regular expression.
    """
    try:
        return _of_sequence(_PARSER.parse(pattern)) or frozenset()
    except RecursionError:
        return frozenset()


def _of_sequence(items: Iterable[tuple[Any, Any]]) -> frozenset[str] | None:
    """The best of the parts that a match must all contain."""
    choices: list[frozenset[str]] = []
    run = frozenset({""})
    for code, value in items:
        name = str(code)
        if name in {"AT", "ASSERT", "ASSERT_NOT"}:
            continue  # no letters of its own
        texts = _texts(name, value)
        if texts is not None and len(run) * len(texts) <= _MOST:
            run = frozenset(begin + end for begin in run for end in texts)
            continue
        choices.append(run)
        run = texts if texts is not None else frozenset({""})
        inner = _of_part(name, value)
        if inner:
            choices.append(inner)
    choices.append(run)
    good = [choice for choice in choices if min(map(len, choice)) >= SHORTEST]
    return max(good, key=_worth) if good else None


def _texts(name: str, value: Any) -> frozenset[str] | None:
    """All texts that a part matches, in lower case; None where they are too many."""
    letter = _letter(name, value)
    if letter:
        return frozenset({letter})
    if name == "SUBPATTERN":
        return _all_texts(value[-1])
    if name in {"MAX_REPEAT", "MIN_REPEAT"} and tuple(value[:2]) == (0, 1):
        inner = _all_texts(value[2])
        return inner | {""} if inner is not None else None
    if name == "BRANCH":
        texts: frozenset[str] = frozenset()
        for branch in value[1]:
            inner = _all_texts(branch)
            if inner is None or len(texts) + len(inner) > _MOST:
                return None
            texts |= inner
        return texts
    return None


def _all_texts(items: Iterable[tuple[Any, Any]]) -> frozenset[str] | None:
    whole = frozenset({""})
    for code, value in items:
        texts = _texts(str(code), value)
        if texts is None or len(whole) * len(texts) > _MOST:
            return None
        whole = frozenset(begin + end for begin in whole for end in texts)
    return whole


def _letter(name: str, value: Any) -> str:
    """The lower-case letter that this part matches; empty if it is a digit or more than one. `[Tt]` is one letter."""
    literals = [(name, value)] if name == "LITERAL" else value if name == "IN" else []
    letters = {chr(number).lower() if str(code) == "LITERAL" else "" for code, number in literals}
    letter = letters.pop() if len(letters) == 1 else ""
    return "" if letter.isdigit() else letter


def _of_part(name: str, value: Any) -> frozenset[str] | None:
    if name == "SUBPATTERN":
        return _of_sequence(value[-1])
    if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"} and value[0] >= 1:
        return _of_sequence(value[2])
    if name == "ATOMIC_GROUP":
        return _of_sequence(value)
    if name == "BRANCH":
        words: frozenset[str] = frozenset()
        for branch in value[1]:
            inner = _of_sequence(branch)
            if not inner:
                return None
            words |= inner
        return words
    return None


_COMMON = re.compile(
    r"loss|grad|train|step|data|model|device|load|output|image|port|length|system|parallel|found|weight|sample|version|"
    r"world|param|batch|avail|link|rank|local|time|shard|file|cuda|gpu|node|process|number|config|state|info|layer|"
    r"memory|epoch|iter|rate|size|total|torch|python|nccl|please|received|checkpoint|instruction|variable|argument|option"
)
"""Words of harmless lines: poor words to search for."""


def _worth(words: frozenset[str]) -> tuple[int, int]:
    """How selective a set of words is; larger is better."""
    return min(_rarity(word) for word in words), -len(words)


def _rarity(word: str) -> int:
    length = min(12, len(word))
    return length - 8 if _COMMON.search(word) and " " not in word.strip() and len(word) < 14 else length
