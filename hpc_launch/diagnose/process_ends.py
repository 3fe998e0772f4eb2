"""What the end of a process means by itself, in one form for all who report one: rules/meanings/ends.yaml.

The kernel, srun, torchrun, DeepSpeed and shells report the same end in different words: `signal 9`, `Killed`,
`exitcode: -9`, `return code = 137`. Here it is a code: -N for signal N, else the exit code.
"""

from __future__ import annotations

import signal
from functools import cache

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.diagnose.diagnosis import Action
from hpc_launch.diagnose.rule_files import read_rules

KILL, ABORT, TERMINATED = -9, -6, -15  # the last is how launchers end the ranks that are left
_FOLD, _WRAP = 128, 256
"""Shells, and what they start, report signal N as 128 + N (bash(1), EXIT STATUS); a few subtract it from 256."""
_NAMES = {signal.strsignal(number): number for number in range(1, 32)}
"""strsignal(3), as srun and shells print it."""


class Meaning(Struct, frozen=True, forbid_unknown_fields=True):
    """What an end says by itself."""

    id: str
    failure_class: str = msgspec.field(name="class")
    order: int
    """As in the rules."""
    codes: tuple[int, ...] = ()
    cause: str = ""
    """Where it differs from that of the one who reports it."""
    verdict: Action | None = None
    advice: str = ""


@cache
def _meanings() -> dict[str | int, Meaning]:
    """By id, and by code."""
    found: list[Meaning] = read_rules("meanings/ends.yaml", list[Meaning])
    by_code: dict[str | int, Meaning] = {code: one for one in found for code in one.codes}
    return {**by_code, **{one.id: one for one in found}}


def code_of(how: str) -> int | None:
    """The code in a report: a number, or the name of a signal as strsignal(3) or signal(7) spells it."""
    if how.lstrip("-").isdecimal():
        return unfolded(int(how))
    number = _NAMES.get(how) or getattr(signal, how, None)
    return None if number is None else -int(number)


def unfolded(code: int) -> int:
    """The signal in a code of 128 + N or 256 - N, as -N; another code as it is."""
    return next((-n for n in (code - _FOLD, _WRAP - code) if n > 0 and -n in _meanings()), code)


def meaning(code: int | None, memory: bool | None) -> Meaning:
    """What an end means. `memory`: whether a kill for lack of memory was counted; None if nobody counted."""
    if memory:
        return _meanings()["memory"]
    if code == KILL and memory is None:
        return _meanings()["perhaps memory"]
    if code is None:
        return _meanings()["unseen"]
    found = _meanings().get(code) or _meanings()["code" if code > 0 else "crash"]
    return replace(found, advice=found.advice.replace("{code}", str(code)))
