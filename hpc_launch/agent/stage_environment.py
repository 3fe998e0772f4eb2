"""A Python environment to be copied to a node's disk: its files, the key that names its state, and what has to change.

A copy of an environment works because Python finds its prefix from its own path (site.py, PEP 405). The first lines of
console scripts are rewritten. Everything else that holds the original's path still refers to the original.

The copies are in private folders on a disk that others may write to, with locks and descriptions.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List, NamedTuple, Set

from hpc_launch.agent.folders import file_system, make_own_folder, refuse_replaceable

VERSION = "2"
"""Part of each key: change it with the format of the archive or of the copy."""
THREADS = 32
"""Folders that are listed at once: on a parallel file system most of the time is latency."""
TEST_S = 60.0
LINE_LIMIT = 127
"""Bytes of a script's first line that every Linux reads (BINPRM_BUF_SIZE, before Linux 5.1)."""


class NotStaged(Exception):
    """Why the training uses the original."""


class Entry(NamedTuple):
    """A file, folder or link. `target` is empty unless it is a link."""

    path: str
    mode: int
    size: int
    mtime_ns: int
    target: str


def walk(prefix: str, bytecode: bool = False) -> List[Entry]:
    """Every file, folder and link below PREFIX by name. Without compiled bytecode unless asked for: any process may
    write it."""
    result, level = [], [""]  # type: List[Entry], List[str]
    with ThreadPoolExecutor(THREADS) as pool:
        while level:
            found = [one for entries in pool.map(lambda folder: _list(prefix, folder), level) for one in entries]
            found = [one for one in found if bytecode or os.path.basename(one.path) != "__pycache__"]
            level = [one.path for one in found if stat.S_ISDIR(one.mode)]
            result += found
    return sorted(result)


def _list(prefix: str, folder: str) -> List[Entry]:
    entries = []
    with os.scandir(os.path.join(prefix, folder)) as items:
        for item in items:
            made = item.stat(follow_symlinks=False)
            target = os.readlink(item.path) if stat.S_ISLNK(made.st_mode) else ""
            if target or stat.S_ISREG(made.st_mode) or stat.S_ISDIR(made.st_mode):
                path = os.path.join(folder, item.name)
                entries.append(Entry(path, made.st_mode, made.st_size, made.st_mtime_ns, target))
    return entries


def key_of(source: str, python: Dict[str, Any], entries: List[Entry]) -> str:
    """The digest that names a state of the environment or folder."""
    about = repr((VERSION, source, python.get("version"), python.get("base")))
    digest = hashlib.sha256(about.encode("utf-8", "replace"))
    for one in entries:
        if not stat.S_ISDIR(one.mode):  # its time changes with the bytecode in it
            words = (one.path, str(one.mode), str(one.size), str(one.mtime_ns), one.target)
            digest.update(b"\0".join(map(os.fsencode, words)) + b"\n")
    return digest.hexdigest()[:32]


def size_of(entries: List[Entry]) -> List[int]:
    """The number of files, and of their bytes."""
    sizes = [one.size for one in entries if not stat.S_ISDIR(one.mode)]
    return [len(sizes), sum(sizes)]


def python_of(prefix: str) -> Dict[str, Any]:
    """The interpreter of an environment: its name in bin/, version and prefixes."""
    if not any(os.path.exists(os.path.join(prefix, mark)) for mark in ("pyvenv.cfg", "conda-meta")):
        raise NotStaged("%s is neither a virtual environment nor a conda environment" % prefix)
    for name in ("python3", "python"):
        if os.path.exists(os.path.join(prefix, "bin", name)):
            return dict(_ask_python(os.path.join(prefix, "bin", name), "-S"), name=name)
    raise NotStaged("%s has no bin/python3" % prefix)


def check_python(copy: str, python: Dict[str, Any]) -> None:
    """Raise NotStaged unless the moved interpreter takes the copy for its prefix."""
    answer = _ask_python(os.path.join(copy, "bin", python["name"]))
    if answer["prefix"] != copy or answer["version"] != python["version"]:
        raise NotStaged("moved to %s, its Python reports the prefix %s" % (copy, answer["prefix"]))


_QUESTION = """import json, sys
print(json.dumps({"version": sys.version, "prefix": sys.prefix, "base": sys.base_prefix}))"""


def _ask_python(program: str, *options: str) -> Dict[str, Any]:
    """What an interpreter reports of itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [program, "-I", *options, "-c", _QUESTION],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=TEST_S,
            env=environment,
            check=False,
        )
        return dict(json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        raise NotStaged("%s does not start" % program) from None


def move(tree: str, final: str, source: str) -> None:
    """Rewrite the interpreter in the first lines of console scripts of a copy of SOURCE that will be at FINAL."""
    folder = os.path.join(tree, "bin")
    for name in os.listdir(folder) if not os.path.islink(folder) else ():
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path):
            _rewrite(path, {os.fsencode(source), os.fsencode(os.path.realpath(source))}, os.fsencode(final))


def _rewrite(path: str, old: Set[bytes], new: bytes) -> None:
    """Replace a script by a changed one: it may have other names."""
    with open(path, "rb") as stream:
        text = stream.read(2)
        if text != b"#!":
            return
        text += stream.read()
    # The second line names the interpreter if the path is long or has a space (pip, distlib: `'''exec' PATH`).
    lines = text.split(b"\n", 2)
    for at, line in enumerate(lines[:2]):
        if at == 0 or line.startswith(b"'''exec'"):
            prefix = max((one + b"/" for one in old if one + b"/" in line), key=len, default=b"")
            lines[at] = line.replace(prefix, new + b"/") if prefix else line
    changed = b"\n".join(lines)
    if changed != text and len(lines[0]) <= LINE_LIMIT:
        with open(path + ".new", "xb") as stream:
            stream.write(changed)
            os.fchmod(stream.fileno(), stat.S_IMODE(os.stat(path).st_mode))
        os.rename(path + ".new", path)


def refuse_outside_links(source: str, entries: List[Entry]) -> None:
    """Raise NotStaged for a relative link, or line of a .pth file, that leaves the environment."""
    for one in entries:
        path, (folder, name) = os.path.join(source, one.path), os.path.split(one.path)
        targets = [one.target]
        if name.endswith(".pth") and stat.S_ISREG(one.mode):
            with open(path, errors="replace") as stream:
                targets = [line.rstrip() for line in stream]
        for target in targets:
            if target.startswith("..") and os.path.normpath(os.path.join(folder, target)).startswith(".."):
                raise NotStaged("%s refers to %s, outside the environment" % (path, target))


MEMORY = frozenset(("tmpfs", "ramfs"))


def own_root(folder: str) -> str:
    """This user's folder in FOLDER, which others may write to: a link or a folder of another user is refused."""
    if not os.path.isabs(folder):
        raise NotStaged("the folder on the node's own disk is not set")
    if not os.path.isdir(folder):
        raise NotStaged("there is no folder %s" % folder)
    folder = os.path.realpath(folder)  # a link may be changed later
    root = os.path.join(folder, "hpc-launch-%d" % os.getuid())
    refuse_replaceable(folder)
    make_own_folder(root)
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
    """Make a file new, or create it, with the job that uses it."""
    with open(path, "w") as stream:
        stream.write(os.environ.get("HPC_LAUNCH_JOB_ID", ""))
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


def free_memory(meminfo: str = "/proc/meminfo") -> int:
    """Bytes that this process may still use: of the node, and of the job."""
    with open(meminfo) as stream:
        free = [int(line.split()[1]) * 1024 for line in stream if line.startswith("MemAvailable:")]
    of_job = os.environ.get("SLURM_MEM_PER_NODE", "")
    return min([*free, *([int(of_job) << 20] if of_job.isdigit() and int(of_job) else [])], default=0)


def in_memory(path: str) -> bool:
    """Whether files below a path take memory."""
    return file_system(path) in MEMORY


def size_text(size: int) -> str:
    """A size for a message."""
    return "%.1f GiB" % (size / 2**30) if size >= 2**30 else "%.1f MiB" % (size / 2**20)


def read_description(path: str) -> Dict[str, Any]:
    """The description of an archive or of a copy, in a folder that only this user can change."""
    with open(path, encoding="utf-8") as stream:
        return dict(json.load(stream))
