"""The single values of a YAML file by dotted key, for comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from hpc_launch.base.files import read_text

MOST, DEEPEST, LONGEST = 2000, 12, 1 << 20
"""Values, levels and bytes: an alias in YAML may repeat a part of the file very often."""


def flat_values(path: Path) -> dict[str, str]:
    """The values in nested maps and lists, such as `args.lr`; of very many, the first. Empty for an invalid file."""
    try:
        values = msgspec.yaml.decode(read_text(path, longest=LONGEST))
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return {}
    return dict(islice(_flat(values, ()), MOST))


def _flat(value: object, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        yield ".".join(path), str(value)
    for key, part in parts if parts is not None and len(path) < DEEPEST else ():
        yield from _flat(part, (*path, str(key)))
