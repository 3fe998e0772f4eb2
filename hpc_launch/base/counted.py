"""A number with its noun, in the singular or the plural, for messages."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 node`, `3 nodes`; `plural` for nouns that do not take an s, such as `processes`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
