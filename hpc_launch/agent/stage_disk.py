"""Private folders on a disk that others may write to, with locks and descriptions, and the room that is left there."""

import contextlib
import fcntl
import json
import os
import socket
import stat
import time
from typing import Any, Dict, Iterator, Optional

from hpc_launch.agent.file_system import file_system

CHUNK = 1 << 22
"""Bytes that are copied at once."""
BEAT_S = 5.0
"""Seconds between two signs of life."""
UNUSED_S = 86400.0
"""Seconds after which an unused copy, and an unused archive, is removed."""
MEMORY = frozenset(("tmpfs", "ramfs"))


class NotStaged(Exception):
    """Why the training uses the original."""


class Deadline:
    """The time that is left. `beat` is a folder whose time is renewed as a sign of life."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self.beat: Optional[str] = None
        self.beaten = 0.0

    def check(self) -> None:
        now = time.monotonic()
        if now > self.end:
            raise NotStaged("it took longer than %d s" % self.seconds)
        if self.beat is not None and now - self.beaten > BEAT_S:
            self.beaten = now
            with contextlib.suppress(OSError):
                os.utime(self.beat)


def own_root(folder: str) -> str:
    """This user's folder in FOLDER, which others may write to: a link or a folder of another user is refused."""
    if not os.path.isabs(folder):
        raise NotStaged("the folder on the node's own disk is not set")
    if not os.path.isdir(folder):
        raise NotStaged("there is no folder %s" % folder)
    folder = place = os.path.realpath(folder)  # a link may be changed later
    while True:
        made = os.stat(place)
        writable = made.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not made.st_mode & stat.S_ISVTX
        if made.st_uid not in (0, os.getuid()) or writable:
            raise NotStaged("others can replace files in %s" % place)
        if place == "/":
            break
        place = os.path.dirname(place)
    root = os.path.join(folder, "hpc-launch-%d" % os.getuid())
    make_own_folder(root)
    return root


def make_own_folder(path: str) -> None:
    """Create a private folder. Raises NotStaged if its place is taken by something that others can change."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    made = os.lstat(path)
    if not stat.S_ISDIR(made.st_mode) or made.st_uid != os.getuid() or made.st_mode & 0o077:
        raise NotStaged("%s is not a private folder of this user" % path)


def lock_file(root: str, key: str) -> str:
    """The file that processes which use the copy hold a shared lock on."""
    return os.path.join(root, key + ".lock")


@contextlib.contextmanager
def locked(path: str, deadline: Deadline) -> Iterator[Any]:
    """The exclusive lock, as soon as nobody else unpacks or uses the copy."""
    with open(path, "a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                deadline.check()
                time.sleep(0.1)
        yield stream


def touch(path: str) -> None:
    """Make a file new, or create it."""
    with open(path, "a"):
        os.utime(path)


def broadcast_file(root: str, key: str) -> str:
    """Where Slurm puts the archive, if it does."""
    return os.path.join(root, key + ".sbcast")


def remove_broadcast(root: str, key: str) -> None:
    """Remove that archive."""
    with contextlib.suppress(OSError):
        os.unlink(broadcast_file(root, key))


def check_room(folder: str, needed: int) -> None:
    """NotStaged unless the copy fits: on a disk with a tenth of the free space left, in memory with half of it."""
    memory = in_memory(folder)
    free = min(free_bytes(folder), free_memory()) if memory else free_bytes(folder)
    share, of = (0.5, "half of the free memory") if memory else (0.9, "nine tenths of the free space")
    if needed > free * share:
        text = (size_text(needed), of, os.path.dirname(folder), size_text(int(free * share)))
        raise NotStaged("the copy needs %s, and %s of %s is %s" % text)


def free_bytes(folder: str) -> int:
    """Free space of a file system for this user."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def free_memory(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Bytes that this process may still use: of the node, of its cgroup and of the job."""
    free = []
    with contextlib.suppress(OSError, ValueError, IndexError), open(proc + "/meminfo") as stream:
        free += [int(line.split()[1]) * 1024 for line in stream if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError), open(proc + "/self/cgroup") as stream:
        for line in stream:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            names = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
            )
            folder = cgroups + ("/memory" if controllers else "") + path
            with contextlib.suppress(OSError, ValueError):  # "max": no limit
                limit, used = (int(_text(os.path.join(folder, name))) for name in names)
                free.append(limit - used)
    with contextlib.suppress(KeyError, ValueError):
        free.append(int(os.environ["SLURM_MEM_PER_NODE"]) << 20 or (1 << 62))
    return max(min(free), 0) if free else 0


def _text(path: str) -> str:
    with open(path) as stream:
        return stream.read()


def in_memory(path: str) -> bool:
    """Whether files below a path take memory."""
    return file_system(path) in MEMORY


def size_text(size: int) -> str:
    """A size for a message."""
    return "%.1f GiB" % (size / 2**30) if size >= 2**30 else "%.1f MiB" % (size / 2**20)


def open_own(path: str) -> Any:
    """Open a file of this user for reading."""
    stream = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    made = os.fstat(stream.fileno())
    if made.st_uid != os.getuid() or made.st_mode & 0o022 or not stat.S_ISREG(made.st_mode):
        stream.close()
        raise NotStaged("others can change %s" % path)
    return stream


def read_description(path: str) -> Dict[str, Any]:
    """The description of an archive or of a copy, a file of this user."""
    with open_own(path) as stream:
        about = json.loads(stream.read().decode("utf-8"))
    if not isinstance(about, dict):
        raise NotStaged("%s is not a description" % path)
    return about


def write_json(path: str, value: Dict[str, Any]) -> None:
    """Write a record."""
    write_text(path, json.dumps(value))


def write_text(path: str, text: str) -> None:
    """Write a file that is complete whenever it exists."""
    partial = "%s.tmp-%s-%d" % (path, socket.gethostname(), os.getpid())
    with open(partial, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)
    os.rename(partial, path)
