"""Lines that every good attempt of a run also printed: they are not evidence against a later one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from hpc_launch.diagnose.evidence import Hit, LogScan
from hpc_launch.diagnose.rulebook import Rulebook
from hpc_launch.runs.evidence.artifacts import scans
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.verdict_record import read_verdict

_GOOD = frozenset({"CONTINUE", "NONE"})
"""Verdicts on an attempt that trained until something outside ended it, or to its end."""
_MOST = 2
"""How many good attempts are compared, the newest first."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


def without_ordinary(found: Iterable[LogScan], attempt: AttemptFolder, rules: Rulebook) -> Iterator[LogScan]:
    """The scans, in which such lines count as warnings only."""
    ordinary: frozenset[str] | None = None
    for scan in found:
        if scan.hits and ordinary is None:
            ordinary = ordinary_lines(attempt, rules)
        if not scan.hits or not ordinary:
            yield scan
            continue
        yield replace(
            scan, hits=tuple(replace(hit, faint=True) if _form(hit) in ordinary else hit for hit in scan.hits)
        )


def ordinary_lines(attempt: AttemptFolder, rules: Rulebook) -> frozenset[str]:
    """The forms of the lines after which all of the newest good attempts before this one trained on."""
    good = [one for one in attempt.run.attempts() if one.number < attempt.number and _is_good(one)][-_MOST:]
    forms = [
        frozenset(_form(hit) for scan in scans(one, rules, ()) for hit in scan.hits if hit.later_progress)
        for one in good
    ]
    return frozenset.intersection(*forms) if forms else frozenset()


def _is_good(attempt: AttemptFolder) -> bool:
    verdict = read_verdict(attempt)
    return verdict is not None and verdict.action in _GOOD


def _form(hit: Hit) -> str:
    return f"{hit.rule}: {_NUMBERS.sub('#', hit.text)}"
