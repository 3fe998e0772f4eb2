"""Write a job file as YAML that means the same, with numbers spelled as they were. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hpc_launch.job.document import KeyPath
from hpc_launch.job.scalars import flow_yaml

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def stage_text(data: Mapping[str, Any], written: Mapping[KeyPath, str]) -> str:
    """The text of a document with this data."""
    return "".join(_entries(data, (), written, ""))


def _entries(data: Mapping[str, Any], path: KeyPath, written: Mapping[KeyPath, str], indent: str) -> list[str]:
    lines = []
    for key, value in data.items():
        plain = _PLAIN_KEY.match(key) is not None and key.lower() not in _WORDS
        head = f"{indent}{key if plain else flow_yaml(key)}:"
        if isinstance(value, Mapping) and value:
            lines += [head + "\n", *_entries(value, (*path, key), written, indent + "  ")]
        else:
            lines.append(f"{head} {_inline(value, (*path, key), written)}\n")
    return lines


def _inline(value: Any, path: KeyPath, written: Mapping[KeyPath, str]) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{flow_yaml(key)}: {_inline(child, (*path, key), written)}" for key, child in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(child, (*path, at), written) for at, child in enumerate(value)) + "]"
    if isinstance(value, str):
        return flow_yaml(value)
    return written.get(path) or json.dumps(value)
