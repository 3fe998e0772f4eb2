"""The literal words that every match of a regular expression contains: a fast scan of a log searches for them first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

SHORTEST = 3
"""Minimum number of letters: shorter words occur in every line."""

_PARSER: Any = import_module("re._parser" if hasattr(re, "_parser") else "sre_parse")


def needed_words(pattern: str) -> frozenset[str]:
    """Lower-case words of which every match of `pattern` contains at least one; empty where there are none.

    Raises re.error for an invalid regular expression.
    """
    try:
        return _of_sequence(_PARSER.parse(pattern)) or frozenset()
    except RecursionError:
        return frozenset()


def smallest(words: Iterable[str]) -> list[str]:
    """`words` without those that contain another one: a text with the longer word has the shorter one too."""
    kept: list[str] = []
    for word in sorted(set(words), key=len):
        if not any(short in word for short in kept):
            kept.append(word)
    return kept


def _of_sequence(items: Iterable[tuple[Any, Any]]) -> frozenset[str] | None:
    """The best of the parts that a match must all contain."""
    choices: list[frozenset[str]] = []
    run = ""
    for code, value in items:
        name = str(code)
        if name == "LITERAL":
            run += chr(value).lower()
            continue
        if run:
            choices.append(frozenset({run}))
            run = ""
        inner = _of_part(name, value)
        if inner:
            choices.append(inner)
    if run:
        choices.append(frozenset({run}))
    good = [choice for choice in choices if min(map(len, choice)) >= SHORTEST]
    return max(good, key=_worth) if good else None


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
    return length - 8 if _COMMON.search(word) and len(word) < 14 else length
