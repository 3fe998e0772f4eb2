"""Check what verbs print with `--json` against its documented type, wherever a test calls one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from docs.output_types import OUTPUTS, checked


def verb_of(words: Sequence[str]) -> str | None:
    """The verb that the words after `hpc-launch` begin with; None for one without `--json`."""
    return next((verb for verb in (" ".join(words[:2]), words[0] if words else "") if verb in OUTPUTS), None)


def check_output(words: Sequence[str], stdout: bytes | str) -> None:
    """Raise ValidationError if the output has fields that are not documented, or lacks some."""
    verb = verb_of(words)
    if verb is not None and "--json" in words and stdout.strip():
        for value in stdout.splitlines() if verb == "logs" else [stdout]:
            checked(verb, json.loads(value))
