"""What the end of a process, and an exception, mean by themselves, not by their words: rules/meanings/.

The kernel, srun, torchrun, DeepSpeed and shells report the same end in different words: `signal 9`, `Killed`,
`exitcode: -9`, `return code = 137`. Here it is a code: -N for signal N, else the exit code.

An exception means something by its type, its error number and the code that raised it. The same KeyError is an invalid
configuration in a reader of options, and unusable data in a data set. The same refused connection is a failed download
below urllib, and the network between ranks anywhere else. With the name of a file in it, the same time-out is storage.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Sequence
from functools import cache

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.diagnose.diagnosis import Action
from hpc_launch.diagnose.log_line import read_rules

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


_PLACE = re.compile(r'File "([^"]{1,400})", line \d+(?:, in (\S+))?')
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib\d*/python\d|^<frozen")
_DEEPEST = 6
"""How many frames, from the innermost outwards, are looked at."""


class _Code(Struct, frozen=True, forbid_unknown_fields=True):
    """What code of one kind shows, if it raises an exception of these types."""

    failure_class: str = msgspec.field(name="class")
    cause: str
    types: frozenset[str] = frozenset()
    library: str = "(?!)"
    own: str = "(?!)"
    function: str = "(?!)"


@cache
def _table() -> list[tuple[_Code, re.Pattern[str], re.Pattern[str], re.Pattern[str]]]:
    found: list[_Code] = read_rules("meanings/raised-by.yaml", list[_Code])
    return [(one, re.compile(one.library), re.compile(one.own), re.compile(one.function)) for one in found]


def cause_of(failure_class: str) -> str:
    """The cause that belongs to a class which `owner` gives."""
    return next(code.cause for code, *_ in _table() if code.failure_class == failure_class)


_DOWNLOAD = "network_download_error"
_MEANT = re.compile(r"[^:]*?([A-Z][A-Za-z]*?Error)|(?:\w+\.)*(\w+)")
"""The type at the head of a line, which holds it twice where two ranks wrote at once."""


_CONNECTION = frozenset(
    {"ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError",
     "TimeoutError", "timeout", "gaierror", "herror"}
)  # fmt: skip
"""Types of an exception that only a connection raises."""
_UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ETIMEDOUT, errno.ECONNREFUSED})
_LOST = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN})
_NUMBER = re.compile(r"\[Errno (-?\d{1,3})\]")
_WITH_FILE = re.compile(r"\[Errno \d{1,3}\] [^:]{1,80}: '")
"""Python adds the name of the file (Objects/exceptions.c, OSError)."""
_PACKAGE = re.compile(
    r"/(?:site|dist)-packages/(?!(?:torch|deepspeed|megatron|accelerate|lightning|horovod|mpi4py|ray)/)"
)
"""Packages that may speak to anything; the others connect ranks."""
PEER = "nccl_system_error"


def _of_connection(frames: Sequence[str], exception: str, kind: str) -> str:
    """The class of an exception of a connection; empty for another one."""
    number = _NUMBER.search(exception)
    code = int(number[1]) if number else 0
    if code not in _UNREACHABLE | _LOST and kind not in _CONNECTION:
        return ""
    if _WITH_FILE.search(exception):
        return "filesystem_error"
    paths = [match[1] for text in frames if (match := _PLACE.search(text))]
    downloads = next(library for code, library, *_ in _table() if code.failure_class == _DOWNLOAD)
    if any(downloads.search(path) for path in paths):
        return _DOWNLOAD
    return "" if not paths or _PACKAGE.search(paths[-1]) else PEER


def owner(frames: Sequence[str], exception: str) -> str:
    """The failure class of an exception that this code raised; empty where type and frames do not show one.

    Args:
        frames: The lines `File "…", line N, in f` of the traceback, the innermost last.
        exception: The line that ends the traceback.
    """
    named = _MEANT.match(exception)
    if named is None:
        return ""
    raised = named[1] or named[2]
    if connection := _of_connection(frames, exception, raised):
        return connection
    for text in reversed(frames[-_DEEPEST:]):
        match = _PLACE.search(text)
        if match is None:
            continue
        path, function = match[1], match[2] or ""
        own = _INSTALLED.search(path) is None
        kind = _kind(path, function, own=own)
        if kind is not None:
            return kind.failure_class if raised in kind.types else ""
        if own:
            return ""  # the program's own code raised it, or called what raised it
    return ""


def _kind(path: str, function: str, *, own: bool) -> _Code | None:
    for code, library, file, _ in _table():
        if (file if own else library).search(path):
            return code
    return next((code for code, *_, name in _table() if own and name.match(function)), None)
