"""What the end of a process means by itself: one table of signals and exit codes for all who report one.

The kernel, srun, torchrun, DeepSpeed and shells report the same end in different words: `signal 9`, `Killed`,
`exitcode: -9`, `return code = 137`. Here it is a code: -N for signal N, else the exit code.
"""

from __future__ import annotations

import signal

from msgspec import Struct

from hpc_launch.diagnose.diagnosis import Action

KILL, ABORT = -9, -6
_FOLD = 128
"""Shells, and what they start, report signal N as 128 + N (bash(1), EXIT STATUS); a few subtract it from 256."""
_WRAP = 256


class Meaning(Struct, frozen=True):
    """What an end says by itself."""

    failure_class: str
    order: int
    """As in the rules."""
    cause: str = ""
    """Where it differs from that of the one who reports it."""
    verdict: Action | None = None
    advice: str = ""


_CRASH = Meaning("segfault_or_abort", 46)
_ABORT = Meaning("segfault_or_abort", 51)
"""NCCL's watchdog and the watcher of a hang end processes in this way, too."""
_ASKED = Meaning("cancelled_by_user", 66, "cancelled")
_TERMINATED = Meaning(
    "unknown",
    66,
    "task_died_by_signal",
    advice="SIGTERM ended a task, and Slurm gives no reason; `scancel --signal` and some out-of-memory daemons send it",
)
_WARNED = Meaning(
    "segfault_or_abort",
    66,
    "task_died_by_signal",
    advice="the training did not handle a warning signal, and such a signal ends the process; handle it, or change "
    "`checkpoint.warn`",
)
_CPU_TIME = Meaning(
    "config_error",
    66,
    "task_died_by_signal",
    advice="the process used more CPU time than its limit; see `ulimit -t` on the node",
)
_KILLED = Meaning(
    "segfault_or_abort",
    48,
    verdict="RETRY",
    advice="retry; something outside the training killed a process, and no lack of memory was recorded",
)
_PERHAPS_MEMORY = Meaning(
    "host_oom",
    48,
    advice="something killed the process, usually the kernel for lack of memory; request more memory, or check MaxRSS",
)
_MEMORY = Meaning("host_oom", 10, "host_oom_kill")
_CODE = Meaning("user_code_error", 66)
UNSEEN = Meaning(
    "segfault_or_abort",
    48,
    verdict="RETRY",
    advice="retry; a process ended silently, and no lack of memory was recorded",
)
"""Nobody saw how it ended."""
LEFT = Meaning(
    "unknown",
    48,
    "left_early",
    advice="a rank ended with 0 while others went on: look at the end of its log; a training that is done ends on all",
)
_SIGNALS = {
    **dict.fromkeys((3, 4, 5, 7, 8, 11, 31), _CRASH),
    **dict.fromkeys((1, 2), _ASKED),
    **dict.fromkeys((10, 12), _WARNED),
    -ABORT: _ABORT,
    15: _TERMINATED,
    24: _CPU_TIME,
}
"""signal(7). SIGKILL depends on what was counted."""
_NAMES = {signal.strsignal(number): number for number in range(1, 32)}
"""strsignal(3), as srun and shells print it."""


def code_of(how: str) -> int | None:
    """The code in a report: a number, or the name of a signal as strsignal(3) or signal(7) spells it."""
    word = how.strip()
    if word.lstrip("-").isdecimal():
        return unfolded(int(word))
    number = _NAMES.get(word) or getattr(signal, word, None)
    return None if number is None else -int(number)


def unfolded(code: int) -> int:
    """The signal in a code of 128 + N or 256 - N, as -N; another code as it is."""
    for number in (code - _FOLD, _WRAP - code):
        if number in _SIGNALS or number == -KILL:
            return -number
    return code


def meaning(code: int, memory: bool | None) -> Meaning:
    """What an end means. `memory`: whether a kill for lack of memory was counted; None if nobody counted."""
    if memory:
        return _MEMORY
    if code == KILL:
        return _PERHAPS_MEMORY if memory is None else _KILLED
    return _SIGNALS.get(-code, _CODE if code > 0 else _CRASH)
