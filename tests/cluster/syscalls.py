"""The few Linux calls that Python 3.10 has no function for.

Source of the numbers: ``linux/sched.h``, ``linux/mount.h`` and ``linux/prctl.h``; they are part
of the kernel's stable interface.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4

NAMESPACES = ("mnt", "uts", "ipc", "net", "pid")
"""What a cluster and each of its nodes has of its own, by the names in ``/proc/PID/ns``."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount as mount(2) does; it is not resolved nor recorded by anything in user space."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode() or None)
    _check(result, f"mount {kind or 'bind'} {source} on {target}")


def make_mounts_private() -> None:
    """Keep every later mount of this namespace from showing in another one."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def bind(source: str, target: str) -> None:
    """Show `source`, with all that is mounted below it, at `target` too."""
    mount(source, target, "", MS_BIND | MS_REC)


def detach(target: str) -> None:
    """Take away what is mounted at `target` and below; what still uses it may go on."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def join_namespaces(process: int) -> None:
    """Move into all namespaces of a process; only children enter its pid namespace."""
    # All are opened first: after the first move /proc may show another pid namespace.
    handles = [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    for handle, name in zip(handles, NAMESPACES, strict=True):
        _check(_libc.setns(handle, 0), f"setns {name} of {process}")
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes out; a process that dies lets go by itself."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")


def own_proc_files() -> None:
    """Give this process its files in /proc again, which a change of user without an exec takes away (proc(5))."""
    _check(_libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def outlive(*numbers: signal.Signals) -> None:
    """Let signals do nothing here. Ignored ones would be ignored by every program started from here too.

    slurmd 26.05 hands them on to the jobs: a job that never hears of SIGTERM is no job as users have it.
    """
    for number in numbers:
        signal.signal(number, lambda _number, _frame: None)


def children(process: int) -> list[int]:
    """The direct children of a process, as numbered in the ``/proc`` of the caller."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except (OSError, UnicodeDecodeError):
            continue  # it ended while we looked
        # The command, in brackets, may itself hold brackets and spaces.
        if int(stat.rpartition(")")[2].split()[1]) == process:
            found.append(int(entry.name))
    return found


def descendants(process: int) -> list[int]:
    """All processes below a process, parents before children."""
    found = []
    for child in children(process):
        found += [child, *descendants(child)]
    return found


def start_time(process: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none.

    With its number this names a process for good: numbers are used again.
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0
    state, *fields = stat.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(fields[18])


def processes_of(folder: Path) -> list[str]:
    """The command lines on this machine that name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found
