"""Search a block of a log for many words at once, faster than line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Search = Callable[[bytes], list[int]]
"""Takes a block; returns the ascending positions of words, whatever their case. Words may not overlap."""


def word_search(words: Iterable[str]) -> Search | None:
    """The search for lower-case words; None where the library for it has no build for this machine."""
    try:
        from ahocorasick_rs import BytesAhoCorasick, Implementation
    except ImportError:
        return None
    automaton = BytesAhoCorasick([word.encode() for word in words], implementation=Implementation.DFA)

    def search(block: bytes) -> list[int]:
        return [start for _, start, _ in automaton.find_matches_as_indexes(block.lower())]

    return search


def words_in(words: Sequence[str]) -> Callable[[str], Iterable[int]]:
    """A function that gives the numbers of all words in a lower-case line."""
    try:
        from ahocorasick_rs import AhoCorasick
    except ImportError:
        return lambda low: [number for number, word in enumerate(words) if word in low]
    automaton = AhoCorasick(list(words))
    return lambda low: {number for number, _, _ in automaton.find_matches_as_indexes(low, overlapping=True)}
