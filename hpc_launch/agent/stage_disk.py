"""Private folders on a disk that others may write to, with locks and descriptions, and the room that is left there."""

import contextlib
import fcntl
import json
import os
import socket
import stat
import time
from typing import Any, Dict, Iterator

from hpc_launch.agent.folders import NotOwnError, file_system, make_own_folder, refuse_replaceable
from hpc_launch.agent.stage_environment import NotStaged

MEMORY = frozenset(("tmpfs", "ramfs"))


def own_root(folder: str) -> str:
    """This user's folder in FOLDER, which others may write to: a link or a folder of another user is refused."""
    if not os.path.isabs(folder):
        raise NotStaged("the folder on the node's own disk is not set")
    if not os.path.isdir(folder):
        raise NotStaged("there is no folder %s" % folder)
    folder = os.path.realpath(folder)  # a link may be changed later
    root = os.path.join(folder, "hpc-launch-%d" % os.getuid())
    try:
        refuse_replaceable(folder)
        make_own_folder(root)
    except NotOwnError as error:
        raise NotStaged(str(error)) from None
    return root


def lock_file(folder: str, key: str) -> str:
    """The file that is locked by who writes a copy or an archive, and by the processes that use the copy."""
    return os.path.join(folder, key + ".lock")


@contextlib.contextmanager
def locked(path: str, seconds: float) -> Iterator[None]:
    """The exclusive lock, as soon as nobody else writes or uses the copy. Raises NotStaged."""
    end = time.monotonic() + seconds
    with open(path, "a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise NotStaged("%s is in use" % path) from None
                time.sleep(0.1)
            except OSError:  # a file system without locks: two at once only waste work
                break
        yield


def touch(path: str) -> None:
    """Make a file new, or create it."""
    with open(path, "a"):
        os.utime(path)


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
            old = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            folder = cgroups + ("/memory" if controllers else "") + path
            with contextlib.suppress(OSError, ValueError):  # "max": no limit
                names = old if controllers else ("memory.max", "memory.current")
                limit, used = (_number(os.path.join(folder, name)) for name in names)
                free.append(limit - used)
    with contextlib.suppress(KeyError, ValueError):
        free.append(int(os.environ["SLURM_MEM_PER_NODE"]) << 20 or (1 << 62))
    return max(min(free), 0) if free else 0


def _number(path: str) -> int:
    with open(path) as stream:
        return int(stream.read())


def in_memory(path: str) -> bool:
    """Whether files below a path take memory."""
    return file_system(path) in MEMORY


def size_text(size: int) -> str:
    """A size for a message."""
    return "%.1f GiB" % (size / 2**30) if size >= 2**30 else "%.1f MiB" % (size / 2**20)


def read_description(path: str) -> Dict[str, Any]:
    """The description of an archive or of a copy. Raises NotStaged unless it is a file that only this user changes."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as stream:
        made = os.fstat(stream.fileno())
        if made.st_uid != os.getuid() or made.st_mode & 0o022 or not stat.S_ISREG(made.st_mode):
            raise NotStaged("others can change %s" % path)
        return dict(json.load(stream))


def write_text(path: str, text: str) -> None:
    """Write a file that is complete whenever it exists."""
    partial = "%s.tmp-%s-%d" % (path, socket.gethostname(), os.getpid())
    with open(partial, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)
    os.rename(partial, path)
