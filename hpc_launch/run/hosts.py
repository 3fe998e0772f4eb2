"""Slurm's host lists, such as `n[1-4,07],gpu3`, as names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

MOST = 65_536
"""More names than any cluster has: a list that says more is kept as it is."""

_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_PART = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})\Z")


def names(value: Any) -> tuple[str, ...]:
    """The host names in a host list, a list of names, or None. What cannot be read stays one name as it stands."""
    if isinstance(value, (list, tuple)):
        return tuple(str(item) for item in value)
    if not isinstance(value, str) or not value.strip():
        return ()
    result: list[str] = []
    for item in _ITEM.findall(value.strip()):
        parts = [list(_expand(match[0])) if match[0] else [match[1]] for match in _PART.findall(item)]
        size = 1
        for part in parts:
            size *= len(part)
        if size == 0 or len(result) + size > MOST:
            return (value.strip(),)
        result.extend("".join(combination) for combination in product(*parts))
    return tuple(result)


def _expand(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        match = _RANGE.match(part)
        if not match or int(match[2]) - int(match[1]) > MOST:
            yield part
            continue
        for number in range(int(match[1]), int(match[2]) + 1):
            yield str(number).zfill(len(match[1]))
