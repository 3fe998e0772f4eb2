"""Meaning of an unquoted YAML scalar: YAML 1.2's core schema, without octal and hexadecimal numbers, inf and NaN."""

from __future__ import annotations

import json
import math
import re
from typing import Any

NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# At most 1000 digits: int() rejects text of more than 4300, and nothing that long is meant as a number.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,999})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def scalar(text: str) -> str | int | float | bool | None:
    """Convert an unquoted YAML scalar. `--set KEY=VALUE` uses the same rules."""
    if text in NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        # An abbreviated commit hash such as 12e4567 looks like a huge number; keep it as text.
        return number if math.isfinite(number) else text
    return text


def flow_yaml(value: Any) -> str:
    """A value as YAML on one line, in printable characters: JSON, with the escapes of YAML."""
    return "".join(
        character if character.isprintable() else f"\\U{ord(character):08x}"
        for character in json.dumps(value, ensure_ascii=False)
    )
