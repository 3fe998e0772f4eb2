"""Copy a Python environment or an image to the nodes of a job: pack it once, unpack it on each node.

    python3 -I -S hpc_launch_stage.py pack STORE SOURCE [--shared-only] [--limit S]
    python3 -I -S hpc_launch_stage.py needs STORE KEY FOLDER...
    python3 -I -S hpc_launch_stage.py node STORE KEY FOLDER... [--record F] [--limit S]
    python3 -I -S hpc_launch_stage.py remove KEY FOLDER... [--memory]

Self-contained: standard library of Python 3.6 or later. `pack` runs once in a job, on its first node, and prints the
key: a digest of the name, size and time of each file. It writes STORE/KEY.tar unless that exists. `node` runs once on
each node and prints `staged FOLDER SECONDS`, `reused FOLDER SECONDS` or `skipped - REASON`; FOLDER/KEY/copy is then a
verified copy. `needs` prints `needed FOLDER` or `reused FOLDER` before that; Slurm may then put the archive into
FOLDER/KEY.sbcast. `remove` deletes the copy. Nothing here may end a job: if it fails, the training uses the original.

A copy of an environment works because Python finds its prefix from its own path (site.py, PEP 405). The first lines of
console scripts and absolute paths in .pth files are rewritten. Everything else that holds the original's path still
refers to the original, which exists.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

VERSION = "1"
"""Part of each key: change it with the format of the archive or of the copy."""
THREADS = 32
"""Files that are listed or read at once: on a parallel file system most of the time is latency."""
SMALL = 1 << 20
"""Bytes up to which a file is read ahead."""
CHUNK = 1 << 22
STALE_S = 150.0
"""Seconds after which a build lock without a sign of life is taken over. An NFS client may show a time 60 s late."""
BEAT_S = 5.0
RECENT_S = 600.0
"""Seconds for which a copy of an older state of the environment is kept: its job may not have started it yet."""
UNUSED_S = 86400.0
"""Seconds after which an unused copy, and an unused archive, is removed."""
FAILED_S = 6 * 3600.0
"""Seconds for which an environment that could not be packed is not tried again."""
WAIT_S = 15.0
"""Seconds to wait at the end of a job for the processes that still use the copy, such as the watcher."""
TEST_S = 60.0
LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs jfs overlay squashfs erofs iso9660 tmpfs ramfs rootfs devtmpfs".split()
)
"""File systems that only this node uses. All others count as shared."""
MEMORY = frozenset(("tmpfs", "ramfs"))
LINE_LIMIT = 127
"""Bytes of a script's first line that every Linux reads (BINPRM_BUF_SIZE, before Linux 5.1)."""

Entry = NamedTuple("Entry", [("path", str), ("mode", int), ("size", int), ("mtime_ns", int), ("target", str)])


class NotStaged(Exception):
    """Why the training uses the original."""


class Deadline:
    """The time that is left. `beat` is a folder whose time is renewed as a sign of life."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self.beat = None  # type: Optional[str]
        self.beaten = 0.0

    def check(self) -> None:
        now = time.monotonic()
        if now > self.end:
            raise NotStaged("it took longer than %d s" % self.seconds)
        if self.beat is not None and now - self.beaten > BEAT_S:
            self.beaten = now
            with contextlib.suppress(OSError):
                os.utime(self.beat)


def main(arguments: Optional[List[str]] = None) -> int:
    """Do what the command line says. 1: not staged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "needs", "node", "remove"))
    parser.add_argument("words", nargs="+")
    parser.add_argument("--shared-only", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--record", default="", help="folder for a file with this node's FOLDER, named after the node")
    parser.add_argument("--limit", type=float, default=600)
    args = parser.parse_args(arguments)
    deadline, began, words = Deadline(args.limit), time.monotonic(), args.words
    signal.signal(signal.SIGALRM, _expired)  # a system call may hang
    signal.alarm(int(args.limit) + 5)
    os.umask(0o077)
    try:
        if args.what == "pack":
            print(pack(words[0], words[1], deadline, shared_only=args.shared_only))
        elif args.what == "remove":
            remove(words[0], words[1:], memory_only=args.memory)
        elif args.what == "needs":
            print("%s %s" % needs(words[0], words[1], words[2:]))
        else:
            how, folder = on_node(words[0], words[1], words[2:], deadline)
            if args.record:
                write_text(os.path.join(args.record, socket.gethostname()), folder + "\n")
            print("%s %s %.1f" % (how, folder, time.monotonic() - began))
    except (NotStaged, OSError, ValueError, EOFError, tarfile.TarError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print("skipped - %s%s" % (socket.gethostname() + ": " if args.what == "node" else "", reason))
        return 1
    finally:
        signal.alarm(0)
    return 0


def _expired(*_: Any) -> None:
    raise NotStaged("it hung: no answer within the limit")


# Pack


def pack(store: str, source: str, deadline: Deadline, shared_only: bool = False) -> str:
    """The key of SOURCE; STORE/KEY.json then describes a complete archive."""
    source = os.path.abspath(source)
    system = file_system(source)
    if shared_only and system in LOCAL:
        raise NotStaged("%s is on this node's own disk (%s)" % (source, system))
    if os.path.isfile(source):
        return _pack_image(store, source)
    python = _python_of(source)
    entries = walk(source, deadline)
    key = key_of(source, python, entries)
    make_own_folder(store)
    _refuse_what_failed(os.path.join(store, key + ".failed"))
    lock = os.path.join(store, key + ".building")
    if not _is_built(store, key) and take_build_lock(lock, lambda: _is_built(store, key), deadline):
        try:
            _build(store, key, {"kind": "environment", "source": source, "python": python}, deadline)
        except NotStaged as error:  # the next jobs do not spend the same time again
            write_json(os.path.join(store, key + ".failed"), {"reason": str(error)})
            raise
        finally:
            shutil.rmtree(lock, ignore_errors=True)
    for name in (key + ".json", key + ".tar"):
        with contextlib.suppress(OSError):
            os.utime(os.path.join(store, name))
    _remove_old_archives(store, key)
    return key


def _refuse_what_failed(path: str) -> None:
    """NotStaged if this state of the environment could not be packed within the last hours."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        if time.time() - os.stat(path).st_mtime < FAILED_S:
            raise NotStaged("it could not be packed before: %s" % read_description(path)["reason"])


def _is_built(store: str, key: str) -> bool:
    """Whether description and archive are complete."""
    try:
        about = read_description(os.path.join(store, key + ".json"))
        return bool(os.path.getsize(about["archive"]) == about["archive_bytes"])
    except (OSError, ValueError, KeyError, NotStaged):
        return False


def _pack_image(store: str, image: str) -> str:
    """An image is one file and therefore its own archive."""
    made = os.stat(image)
    identity = (VERSION, "image", image, made.st_size, made.st_mtime_ns, made.st_ino)
    key = hashlib.sha256(repr(identity).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    make_own_folder(store)
    about = {"kind": "image", "source": image, "archive": image, "archive_bytes": made.st_size, "bytes": made.st_size}
    about["mtime_ns"] = made.st_mtime_ns
    write_json(os.path.join(store, key + ".json"), about)
    return key


def _python_of(prefix: str) -> Dict[str, Any]:
    """The interpreter of an environment: its name in bin/, version and prefixes."""
    if not any(os.path.exists(os.path.join(prefix, mark)) for mark in ("pyvenv.cfg", "conda-meta")):
        raise NotStaged("%s is neither a virtual environment nor a conda environment" % prefix)
    for name in ("python3", "python"):
        if os.path.exists(os.path.join(prefix, "bin", name)):
            return dict(_ask_python(os.path.join(prefix, "bin", name), site=False), name=name)
    raise NotStaged("%s has no bin/python3" % prefix)


_QUESTION = """
import json, sys
found = []
for folder in sys.path:
    if folder.startswith(sys.prefix + "/") and folder.endswith("site-packages"):
        import importlib.util, os
        names = sorted(n for n in os.listdir(folder) if os.path.isfile(os.path.join(folder, n, "__init__.py")))
        for name in names[:5]:
            spec = importlib.util.find_spec(name) if name.isidentifier() else None
            found.append([name, spec.origin if spec else None])
print(json.dumps({"version": sys.version, "prefix": sys.prefix, "base": sys.base_prefix, "found": found}))
"""


def _ask_python(program: str, site: bool = True) -> Dict[str, Any]:
    """What an interpreter reports of itself, and where it finds a few of its packages."""
    command = [program, "-I", *([] if site else ["-S"]), "-c", _QUESTION]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TEST_S, env=environment, check=False
        )
        answer = json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])  # type: Dict[str, Any]
        return dict(answer)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        raise NotStaged("%s does not start" % program) from None


def walk(prefix: str, deadline: Optional[Deadline] = None, bytecode: bool = False) -> List[Entry]:
    """Every file, folder and link below PREFIX by name; several folders are listed at once.

    Without compiled bytecode unless asked for: any process may write it.
    """
    result, level = [], [""]  # type: List[Entry], List[str]
    with ThreadPoolExecutor(THREADS) as pool:
        while level:
            found = list(pool.map(lambda folder: _list(prefix, folder), level))
            found = [[one for one in entries if bytecode or not _is_bytecode(one)] for entries in found]
            level = [one.path for entries in found for one in entries if stat.S_ISDIR(one.mode)]
            for entries in found:
                result += entries
            if deadline is not None:
                deadline.check()
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


def _is_bytecode(one: Entry) -> bool:
    return os.path.basename(one.path) == "__pycache__" and stat.S_ISDIR(one.mode)


def counted(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Without folders, whose times change with the bytecode in them."""
    return (one for one in entries if not stat.S_ISDIR(one.mode))


def key_of(source: str, python: Dict[str, Any], entries: List[Entry]) -> str:
    """The digest that names a state of the environment."""
    digest = hashlib.sha256(repr((VERSION, source, python["version"], python["base"])).encode("utf-8", "replace"))
    for one in counted(entries):
        words = (one.path, str(one.mode), str(one.size), str(one.mtime_ns), one.target)
        digest.update(b"\0".join(map(os.fsencode, words)) + b"\n")
    return digest.hexdigest()[:32]


def take_build_lock(path: str, built: Callable[[], bool], deadline: Deadline, stale: float = STALE_S) -> bool:
    """Whether this process builds; False as soon as another one has built.

    Two builders at once only waste work: each writes its own file and renames it.
    """
    seen, since = None, time.monotonic()
    while True:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        else:
            with contextlib.suppress(OSError), open(os.path.join(path, "owner"), "w") as stream:
                stream.write("%s %d %s\n" % (socket.gethostname(), os.getpid(), os.environ.get("HPC_LAUNCH_JOB_ID")))
            deadline.beat = path
            return True
        if built():
            return False
        with contextlib.suppress(FileNotFoundError):
            changed = os.stat(path).st_mtime_ns
            if changed != seen:
                seen, since = changed, time.monotonic()
            elif time.monotonic() - since > stale:
                grave = "%s.stale-%s-%d" % (path, socket.gethostname(), os.getpid())
                os.rename(path, grave)
                shutil.rmtree(grave, ignore_errors=True)
        deadline.check()
        time.sleep(0.2)


def _build(store: str, key: str, about: Dict[str, Any], deadline: Deadline) -> None:
    source = about["source"]
    entries = walk(source, deadline, bytecode=True)
    needed = sum(one.size + 1024 for one in entries)
    if needed > free_bytes(store):
        raise NotStaged("%s has no room for an archive of %s" % (store, size_text(needed)))
    archive = os.path.join(store, key + ".tar")
    partial = "%s.tmp-%s-%d" % (archive, socket.gethostname(), os.getpid())
    digest = hashlib.sha256()
    try:
        with open(partial, "wb") as stream:
            _write_archive(_Sink(stream, digest, deadline), source, entries)
        now = walk(source, deadline)
        if key_of(source, about["python"], now) != key:
            raise NotStaged("%s changed while it was packed" % source)
        about.update(archive=archive, archive_bytes=os.path.getsize(partial), sha256=digest.hexdigest())
        os.rename(partial, archive)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)
    about.update(bytes=needed, files=sum(1 for _ in counted(now)))
    write_json(os.path.join(store, key + ".json"), about)


class _Sink:
    """A file to write that is hashed."""

    def __init__(self, stream: Any, digest: Any, deadline: Deadline) -> None:
        self.stream, self.digest, self.deadline = stream, digest, deadline

    def write(self, data: bytes) -> int:
        self.deadline.check()
        self.digest.update(data)
        self.stream.write(data)
        return len(data)


def _write_archive(sink: _Sink, source: str, entries: List[Entry]) -> None:
    # Uncompressed: one large file is read faster than gzip unpacks it.
    tar = tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT, bufsize=CHUNK)  # type: ignore[call-overload]
    with contextlib.closing(tar), ThreadPoolExecutor(THREADS) as pool:
        ahead = deque()  # type: deque[Tuple[Entry, Any]]
        for one in entries:
            small = stat.S_ISREG(one.mode) and one.size <= SMALL
            ahead.append((one, pool.submit(_read, source, one) if small else None))
            if len(ahead) > 4 * THREADS:
                _add(tar, source, *ahead.popleft())
        while ahead:
            _add(tar, source, *ahead.popleft())


def _read(source: str, one: Entry) -> bytes:
    with open(os.path.join(source, one.path), "rb") as stream:
        return stream.read(SMALL + 1)


def _add(tar: tarfile.TarFile, source: str, one: Entry, reading: Any) -> None:
    member = tarfile.TarInfo(os.path.join("copy", one.path))
    member.mode, member.mtime = stat.S_IMODE(one.mode) | stat.S_IRUSR | stat.S_IWUSR, one.mtime_ns // 10**9
    if stat.S_ISDIR(one.mode):
        member.type, member.mode = tarfile.DIRTYPE, member.mode | stat.S_IXUSR
        tar.addfile(member)
    elif one.target:
        member.type, member.linkname = tarfile.SYMTYPE, _link_target(source, one)
        tar.addfile(member)
    elif reading is None:
        member.size = one.size
        with open(os.path.join(source, one.path), "rb") as stream:
            tar.addfile(member, stream)
    else:
        data = reading.result()
        if len(data) != one.size:
            raise NotStaged("%s changed while it was packed" % os.path.join(source, one.path))
        member.size = one.size
        tar.addfile(member, _Bytes(data))  # type: ignore[arg-type]


class _Bytes:
    """A file to read from memory."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def read(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]


def _link_target(source: str, one: Entry) -> str:
    """A relative link that leaves the environment has to become absolute, because the copy is elsewhere."""
    inside = os.path.normpath(os.path.join(os.path.dirname(one.path), one.target))
    leaves = not os.path.isabs(one.target) and inside.split("/")[0] == ".."
    return os.path.normpath(os.path.join(source, inside)) if leaves else one.target


def _remove_old_archives(store: str, key: str) -> None:
    """Archives that no job has used for a day, and what killed builders left."""
    for name in os.listdir(store):
        path = os.path.join(store, name)
        with contextlib.suppress(OSError):
            if name.split(".")[0] != key and time.time() - os.lstat(path).st_mtime > UNUSED_S:
                shutil.rmtree(path) if stat.S_ISDIR(os.lstat(path).st_mode) else os.unlink(path)


# Unpack


def needs(store: str, key: str, folders: List[str]) -> Tuple[str, str]:
    """Whether this node has a copy (`reused`) or needs the archive (`needed`), and the folder to put it in."""
    roots = [own_root(folder) for folder in folders[:1]]
    if not roots or is_complete(roots[0], key):
        return "reused", roots[0] if roots else "-"
    about = read_description(os.path.join(store, key + ".json"))
    check_room(roots[0], about["bytes"] + about["archive_bytes"])
    return "needed", roots[0]


def on_node(store: str, key: str, folders: List[str], deadline: Deadline) -> Tuple[str, str]:
    """How this node got its copy (`staged`, `reused`), and the folder."""
    reasons, roots = [], []  # type: List[str], List[str]
    for folder in folders:
        try:
            roots.append(own_root(folder))
        except (NotStaged, OSError) as error:
            reasons.append(str(error))
    for root in roots:
        if is_complete(root, key):
            _touch(lock_file(root, key))
            _remove_broadcast(root, key)
            return "reused", root
    for root in roots:
        try:
            with locked(lock_file(root, key), deadline) as lock:
                _touch(lock.name)
                if is_complete(root, key):  # another job on this node has just unpacked it
                    return "reused", root
                _unpack(store, key, root, deadline)
            _remove_others(root, key)
            return "staged", root
        except (NotStaged, OSError, EOFError, tarfile.TarError) as error:
            reasons.append(str(error))
        finally:
            _remove_broadcast(root, key)
    raise NotStaged("; ".join(reasons) or "no folder on the node's own disk is known")


def broadcast_file(root: str, key: str) -> str:
    """Where Slurm puts the archive, if it does."""
    return os.path.join(root, key + ".sbcast")


def _remove_broadcast(root: str, key: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(broadcast_file(root, key))


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


def is_complete(root: str, key: str) -> bool:
    """Whether the copy is there with every file: programs that clear temporary folders may delete some of them."""
    folder = os.path.join(root, key)
    try:
        about = read_description(os.path.join(folder, "complete"))
        if about["kind"] == "image":
            return bool(os.path.getsize(os.path.join(folder, "copy")) == about["bytes"])
        _check_tree(folder, about)
        _check_python(os.path.join(folder, "copy"), about)
        return True
    except (OSError, ValueError, KeyError, NotStaged):
        return False


def _check_tree(folder: str, about: Dict[str, Any]) -> None:
    entries = list(counted(walk(os.path.join(folder, "copy"))))
    if [len(entries), sum(one.size for one in entries)] != about["tree"]:
        raise NotStaged("the copy in %s is not complete" % folder)


def _check_python(copy: str, about: Dict[str, Any]) -> None:
    """Whether the moved interpreter takes the copy for its prefix, and finds its packages there."""
    python = about["python"]
    answer = _ask_python(os.path.join(copy, "bin", python["name"]))
    if answer["prefix"] != copy or answer["version"] != python["version"]:
        raise NotStaged("moved to %s, its Python reports the prefix %s" % (copy, answer["prefix"]))
    if answer["found"] and not any(str(origin).startswith(copy + "/") for _, origin in answer["found"]):
        raise NotStaged("moved to %s, its Python does not find its packages" % copy)


def _unpack(store: str, key: str, root: str, deadline: Deadline) -> None:
    for name in os.listdir(root):  # of processes that were killed: only one that holds the lock writes here
        if name == key or name.startswith(key + ".tmp"):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    about = read_description(os.path.join(store, key + ".json"))
    check_room(root, about["bytes"])
    with contextlib.suppress(OSError):
        if os.path.getsize(broadcast_file(root, key)) == about["archive_bytes"]:
            about["archive"] = broadcast_file(root, key)
    partial = os.path.join(root, "%s.tmp.%d" % (key, os.getpid()))
    os.mkdir(partial, 0o700)
    try:
        if about["kind"] == "image":
            _copy_image(about, os.path.join(partial, "copy"), deadline)
        else:
            _extract(about, partial, deadline)
            _rewrite_paths(os.path.join(partial, "copy"), os.path.join(root, key, "copy"), about["source"])
            _check_python(os.path.join(partial, "copy"), about)
            entries = list(counted(walk(os.path.join(partial, "copy"))))
            if len(entries) != about["files"]:
                raise NotStaged("the archive holds %d files and not %d" % (len(entries), about["files"]))
            about["tree"] = [len(entries), sum(one.size for one in entries)]
        write_json(os.path.join(partial, "complete"), about)
        os.rename(partial, os.path.join(root, key))
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class _Source:
    """A file to read that is hashed."""

    def __init__(self, stream: Any, digest: Any, deadline: Deadline) -> None:
        self.stream, self.digest, self.deadline = stream, digest, deadline

    def read(self, size: int = -1) -> bytes:
        self.deadline.check()
        data = self.stream.read(size)  # type: bytes
        self.digest.update(data)
        return data


def _extract(about: Dict[str, Any], folder: str, deadline: Deadline) -> None:
    digest = hashlib.sha256()
    with open_own(about["archive"]) as stream:
        source = _Source(stream, digest, deadline)
        if shutil.which("tar") is not None:
            _extract_by_tar(source, folder)
        else:
            _extract_by_python(source, folder)
    if digest.hexdigest() != about["sha256"]:
        raise NotStaged("%s is damaged" % about["archive"])


def _extract_by_tar(source: _Source, folder: str) -> None:
    """Ten times faster than Python's own module. -p: keep modes; -o: files belong to this user."""
    words = ["tar", "-xpof", "-", "-C", folder]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as tar, ThreadPoolExecutor(1) as pool:
        said = pool.submit(tar.stderr.read)  # type: ignore[union-attr]
        try:
            with contextlib.suppress(BrokenPipeError), tar.stdin as pipe:  # type: ignore[union-attr]
                for data in iter(lambda: source.read(CHUNK), b""):
                    pipe.write(data)
        except BaseException:
            tar.kill()
            raise
        message = said.result().decode("utf-8", "replace").strip()
    if tar.returncode:
        raise NotStaged((message.splitlines() or ["tar failed"])[0])


def _extract_by_python(source: _Source, folder: str) -> None:
    with tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK) as tar:  # type: ignore[call-overload]
        tar.chown = lambda *_: None
        tar.extraction_filter = lambda member, _: member  # this user's own archive, with absolute links
        for member in tar:
            tar.extract(member, folder)
    while source.read(CHUNK):
        pass


def _copy_image(about: Dict[str, Any], to: str, deadline: Deadline) -> None:
    with open(about["archive"], "rb") as source, open(to, "wb") as copy:
        for data in iter(lambda: source.read(CHUNK), b""):
            deadline.check()
            copy.write(data)
    made = os.stat(about["source"])
    if (made.st_size, made.st_mtime_ns) != (about["bytes"], about["mtime_ns"]) or os.path.getsize(to) != made.st_size:
        raise NotStaged("%s changed while it was copied" % about["source"])


def _rewrite_paths(tree: str, final: str, source: str) -> None:
    """The interpreter in the first lines of console scripts, and folders of the environment in .pth files."""
    old = sorted({os.fsencode(source), os.fsencode(os.path.realpath(source))}, key=len, reverse=True)
    new = os.fsencode(final)
    programs = os.path.join(tree, "bin")
    for name in os.listdir(programs) if os.path.isdir(programs) else ():
        _rewrite(os.path.join(programs, name), lambda text: _new_first_lines(text, old, new), only=b"#!")
    for folder, names, files in os.walk(os.path.join(tree, "lib")):
        if os.path.basename(folder) == "site-packages":
            names[:] = []
            place = os.path.join(source, os.path.relpath(folder, tree))
            for name in files:
                if name.endswith(".pth"):
                    _rewrite(os.path.join(folder, name), lambda text, p=place: _new_lines(text, old, new, p))  # type: ignore[misc]


def _rewrite(path: str, change: Callable[[bytes], bytes], only: bytes = b"") -> None:
    if os.path.islink(path) or not os.path.isfile(path):
        return
    with open(path, "rb") as stream:
        if stream.read(len(only)) != only:
            return
        text = only + stream.read()
    changed = change(text)
    if changed != text:
        with open(path, "wb") as stream:
            stream.write(changed)


def _new_first_lines(text: bytes, old: List[bytes], new: bytes) -> bytes:
    # The second line names the interpreter if the path is long or has a space (pip, distlib: `'''exec' PATH`).
    lines = text.split(b"\n", 2)
    for at, line in enumerate(lines[:2]):
        if at == 0 or line.startswith(b"'''exec'"):
            lines[at] = _moved(line, old, new)
    return text if len(lines[0]) > LINE_LIMIT else b"\n".join(lines)


def _moved(line: bytes, old: List[bytes], new: bytes) -> bytes:
    for path in old:
        if path + b"/" in line:
            return line.replace(path + b"/", new + b"/")
    return line


def _new_lines(text: bytes, old: List[bytes], new: bytes, place: str) -> bytes:
    """Lines of a .pth file (site.py, addpackage): folders of the environment move, folders outside it stay."""
    return b"\n".join(_new_line(line, old, new, os.fsencode(place)) for line in text.split(b"\n"))


def _new_line(line: bytes, old: List[bytes], new: bytes, place: bytes) -> bytes:
    if line.startswith(tuple(path + b"/" for path in old)):
        return _moved(line, old, new)
    outside = os.path.normpath(os.path.join(place, line.rstrip()))
    leaves = line.startswith(b"../") and not outside.startswith(tuple(path + b"/" for path in old))
    return outside if leaves else line


def check_room(folder: str, needed: int) -> None:
    """NotStaged unless the copy fits: on a disk with a tenth of the free space left, in memory with half of it."""
    in_memory = file_system(folder) in MEMORY
    free = min(free_bytes(folder), free_memory()) if in_memory else free_bytes(folder)
    share, of = (0.5, "half of the free memory") if in_memory else (0.9, "nine tenths of the free space")
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


def file_system(path: str, proc: str = "/proc") -> str:
    """The type of the file system of a path; empty if unknown."""
    path, best, result = os.path.realpath(path) + "/", "", ""
    with contextlib.suppress(OSError), open(proc + "/self/mountinfo", "rb") as stream:
        for line in map(os.fsdecode, stream):
            words = line.split()  # proc(5): … mount point … - type …
            place = words[4].replace("\\040", " ").rstrip("/") + "/"
            if path.startswith(place) and len(place) >= len(best):
                best, result = place, words[words.index("-") + 1]
    return result


def size_text(size: int) -> str:
    """A size for a message."""
    return "%.1f GiB" % (size / 2**30) if size >= 2**30 else "%.1f MiB" % (size / 2**20)


# Remove


def remove(key: str, folders: List[str], memory_only: bool = False) -> None:
    """Delete this node's copies of KEY, unless a process uses them."""
    for folder in folders:
        with contextlib.suppress(NotStaged, OSError):
            if not memory_only or file_system(folder) in MEMORY:
                _remove_copy(own_root(folder), key, WAIT_S)


def _remove_others(root: str, key: str) -> None:
    """Delete copies that nobody uses any more: old states of the same environment soon, others after a day."""
    source = read_description(os.path.join(root, key, "complete"))["source"]
    for name in os.listdir(root):
        other = name.split(".")[0]
        if other == key:
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, NotStaged):
            idle = time.time() - os.lstat(lock_file(root, other)).st_mtime
            if idle > UNUSED_S or (idle > RECENT_S and _source_of(root, other) == source):
                _remove_copy(root, other, -1)


def _source_of(root: str, key: str) -> Optional[str]:
    try:
        return str(read_description(os.path.join(root, key, "complete"))["source"])
    except (OSError, ValueError, KeyError, NotStaged):
        return None


def _remove_copy(root: str, key: str, seconds: float) -> None:
    with locked(lock_file(root, key), Deadline(seconds)) as lock:
        for name in os.listdir(root):
            if name == key or name.startswith(key + ".tmp"):
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        _remove_broadcast(root, key)
        os.unlink(lock.name)


# Files


def _touch(path: str) -> None:
    with open(path, "a"):
        os.utime(path)


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


if __name__ == "__main__":
    sys.exit(main())
