"""Regular expressions that others wrote, searched by RE2: its time grows with the length of the text, and no faster."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

MEMORY = 1 << 18
"""Bytes of one expression's program. They bound the time of a search too: a tenth of a second for a line."""


@lru_cache(maxsize=256)
def compiled(text: str) -> re.Pattern[str]:
    """The expression, with the methods of `re.Pattern`. Raises re.error where `re` or RE2 rejects it.

    Jobs search with `re` (Python in a job has nothing else), so that both must accept it.
    """
    try:
        pattern = re.compile(text)
    except (RecursionError, OverflowError) as error:
        raise re.error(str(error)) from error
    try:
        import re2
    except ImportError:  # no build for this machine
        return pattern
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY
    found: Any
    try:
        found = re2.compile(text, options)
    except re2.error as error:
        raise re.error(f"{_words(error)} (the syntax is RE2's, without look-around and backreferences)") from error
    return found  # type: ignore[no-any-return]  # a class of its own


def matches_whole(text: str, value: str) -> bool:
    """Whether an expression matches the whole value; False if it is invalid."""
    try:
        return compiled(text).fullmatch(value) is not None
    except re.error:
        return False


def _words(error: Any) -> str:
    first = error.args[0] if error.args else ""
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)
