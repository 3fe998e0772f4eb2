"""What an unquoted YAML scalar stands for: YAML 1.2's core schema, less octal and hexadecimal numbers, inf and NaN."""

from __future__ import annotations

import math
import re

NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# At most 1000 digits: int() refuses texts of 4300, and nothing that long is a number to anybody.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,999})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def scalar(text: str) -> str | int | float | bool | None:
    """What an unquoted YAML scalar stands for; the same reading for `--set KEY=VALUE`."""
    if text in NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        # A commit's abbreviation such as 12e4567 is in the form of a number beyond all bounds: it stays text.
        return number if math.isfinite(number) else text
    return text
