"""Check what verbs print with `--json` against its documented type, wherever a test calls one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from docs.output_types import OUTPUTS, checked


def check_output(words: Sequence[str], stdout: bytes) -> None:
    """Raise ValidationError if the output has fields that are not documented, or lacks some."""
    verb = next((verb for verb in (" ".join(words[:2]), words[0] if words else "") if verb in OUTPUTS), None)
    if verb is None or "--json" not in words or not stdout.strip():
        return
    found = json.loads(stdout)
    if "points" not in found:  # a sweep's answer has fields of its own
        checked(verb, found)
