"""The limits that the Meta objects of a type set: bounds, lengths and patterns."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import Meta

from hpc_launch.spec.type_hints import Member
from hpc_launch.spec.units import UNITS


def broken_limit(member: Member, value: Any) -> str | None:
    """Which limit of its Meta objects a value breaks, in words; None for none."""
    write: Callable[[Any], str] = UNITS[member.unit].write if member.unit else str
    for meta in member.metas:
        broken = None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            broken = _number(meta, value, write)
        elif isinstance(value, (str, list, dict, tuple)):
            broken = _length(meta, value)
        if broken is not None:
            return broken
    return None


def _number(meta: Meta, value: float, write: Callable[[Any], str]) -> str | None:
    if meta.ge is not None and value < meta.ge:
        return f"must be at least {write(meta.ge)}"
    if meta.gt is not None and value <= meta.gt:
        return f"must be more than {write(meta.gt)}"
    if meta.le is not None and value > meta.le:
        return f"must be at most {write(meta.le)}"
    if meta.lt is not None and value >= meta.lt:
        return f"must be less than {write(meta.lt)}"
    if meta.multiple_of is not None and value % meta.multiple_of:
        return f"must be a multiple of {write(meta.multiple_of)}"
    return None


def _length(meta: Meta, value: Any) -> str | None:
    what = "characters" if isinstance(value, str) else "items"
    if meta.min_length is not None and len(value) < meta.min_length:
        return f"must have at least {meta.min_length} {what}"
    if meta.max_length is not None and len(value) > meta.max_length:
        return f"must have at most {meta.max_length} {what}"
    if isinstance(value, str) and meta.pattern is not None and not _pattern(meta.pattern).search(value):
        return f"must match `{meta.pattern}`"
    return None


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    # As in JSON Schema: `$` is the very end (Python lets a line break follow), digits are the ASCII ones.
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern), re.ASCII)
