"""Pack an environment once for all jobs: STORE/KEY.tar, and STORE/KEY.json that describes it."""

import contextlib
import hashlib
import os
import shutil
import socket
import stat
import tarfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List

from hpc_launch.agent.file_system import LOCAL, file_system
from hpc_launch.agent.stage_disk import (
    CHUNK,
    UNUSED_S,
    Deadline,
    NotStaged,
    free_bytes,
    make_own_folder,
    read_description,
    size_text,
    write_json,
)
from hpc_launch.agent.stage_tree import THREADS, VERSION, Entry, counted, key_of, python_of, walk

SMALL = 1 << 20
"""Bytes up to which a file is read ahead."""
STALE_S = 150.0
"""Seconds after which a build lock without a sign of life is taken over. An NFS client may show a time 60 s late."""
FAILED_S = 6 * 3600.0
"""Seconds for which an environment that could not be packed is not tried again."""


def pack(store: str, source: str, deadline: Deadline, shared_only: bool = False) -> str:
    """The key of SOURCE; STORE/KEY.json then describes a complete archive."""
    source = os.path.abspath(source)
    system = file_system(source)
    if shared_only and system in LOCAL:
        raise NotStaged("%s is on this node's own disk (%s)" % (source, system))
    if os.path.isfile(source):
        return _pack_image(store, source)
    python = python_of(source)
    entries = walk(source, deadline)
    key: str = key_of(source, python, entries)
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
            write_archive(Sink(stream, digest, deadline), source, entries)
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


class Sink:
    """A file to write that is hashed."""

    def __init__(self, stream: Any, digest: Any, deadline: Deadline) -> None:
        self.stream, self.digest, self.deadline = stream, digest, deadline

    def write(self, data: bytes) -> int:
        self.deadline.check()
        self.digest.update(data)
        self.stream.write(data)
        return len(data)


def write_archive(sink: Sink, source: str, entries: List[Entry]) -> None:
    """Write the entries below SOURCE as `copy/` of a tar archive."""
    # Uncompressed: one large file is read faster than gzip unpacks it.
    tar = tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT, bufsize=CHUNK)  # type: ignore[call-overload]
    with contextlib.closing(tar), ThreadPoolExecutor(THREADS) as pool:
        ahead: Any = deque()
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
