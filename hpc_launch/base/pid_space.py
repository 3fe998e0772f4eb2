"""Where a process id is unique: one boot of one machine, and one pid namespace (pid_namespaces(7))."""

from __future__ import annotations

from pathlib import Path

_INITIAL = 0xEFFFFFFC
"""The inode of the machine's own pid namespace (linux/proc_ns.h): a container has another one."""


def pid_space() -> str:
    """This boot and this pid namespace; '' where they are not visible."""
    try:
        return f"{_text('/proc/sys/kernel/random/boot_id')}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def machine_id() -> str:
    """The machine (machine-id(5)), by which a reboot is told from another machine of the same name. '' in a container,
    which may have a copy of its machine's."""
    try:
        return _text("/etc/machine-id") if Path("/proc/self/ns/pid").stat().st_ino == _INITIAL else ""
    except OSError:
        return ""


def _text(path: str) -> str:
    return Path(path).read_text(encoding="ascii", errors="replace").strip()
