"""Training data for the nodes: what kind it is, the key of its state, and how far its copy is."""

import glob
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import IO, Any, Dict, List, Optional

from hpc_launch.agent.stage_environment import VERSION, NotStaged, size_text

MAGIC = {b"hsqs": "squashfs", b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of an image (squashfs-tools, squashfs_fs.h), and of what programs compress: GNU tar does not look at them
where it reads a stream."""
EVERY_S = 10.0
"""Seconds between two lines about a copy."""


def kind_of(path: str) -> str:
    """`folder`, `squashfs`, or what unpacks an archive: `tar` alone, or the program before it. Raises OSError."""
    if os.path.isdir(path):
        return "folder"
    with open(path, "rb") as stream:
        head = stream.read(6)
    return next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), "tar")


def files_of(pattern: str, nodes: int) -> List[str]:
    """The files of a pattern, by name. Raises NotStaged if there are fewer than nodes."""
    paths = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    if len(paths) < nodes:
        raise NotStaged("%s matches %d files, and each of %d nodes needs one" % (pattern, len(paths), nodes))
    return paths


def describe(kind: str, paths: List[str], shards: int = 0) -> Dict[str, Any]:
    """Files that each node copies as they are, or unpacks from where they are, and the key of their state."""
    files = [(path, made.st_size, made.st_mtime_ns) for path, made in zip(paths, map(os.stat, paths))]
    key = hashlib.sha256(repr((VERSION, kind, files, shards)).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    size = sum(size for _, size, _ in files)
    about = {"key": key, "kind": kind, "source": paths[0], "archive": paths[0], "archive_bytes": size, "bytes": size}
    return dict(about, files=files, shards=shards, base=os.path.commonpath([*map(os.path.dirname, paths)]))


def refuse_changed(about: Dict[str, Any]) -> None:
    """Raise NotStaged if a file is not as it was when the job began."""
    for path, size, changed in about.get("files", ()):
        made = os.stat(path)
        if (made.st_size, made.st_mtime_ns) != (size, changed):
            raise NotStaged("%s changed while it was copied" % path)


class Progress:
    """How much of its input this process has read: a line every 10 s, and NotStaged if nothing moves for too long."""

    stream: Optional[IO[bytes]] = None
    """The file whose offset counts. Other programs may share it."""
    size, last, moved, limit = 0, -1, 0.0, 0.0

    def start(self, limit: float) -> None:
        """Begin. A system call that hangs is interrupted after so many seconds."""
        self.limit, self.moved = limit, time.monotonic()
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, min(EVERY_S, limit), min(EVERY_S, limit))

    def _look(self, *_: Any) -> None:
        at = 0
        if self.stream is not None and not self.stream.closed:
            at = os.lseek(self.stream.fileno(), 0, os.SEEK_CUR)
            text = (socket.gethostname(), self.stream.name, size_text(at), size_text(self.size), 100 * at // self.size)
            print("copying - %s: %s, %s of %s (%d %%)" % text, file=sys.stderr, flush=True)
        if at != self.last:
            self.last, self.moved = at, time.monotonic()
        elif time.monotonic() - self.moved > self.limit - 0.1:
            raise NotStaged("it timed out after %d s" % self.limit)


progress = Progress()


def copy_files(about: Dict[str, Any], archive: str, copy: str) -> None:
    """Copy one file, which may also be at ARCHIVE, as COPY; or this node's share of several, into that folder."""
    for path, size, _ in about["files"]:
        target = os.path.join(copy, os.path.relpath(path, about["base"])) if about["shards"] else copy
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(path if about["shards"] else archive, "rb", buffering=0) as source, open(target, "xb") as made:
            progress.stream, progress.size = source, max(size, 1)
            shutil.copyfileobj(source, made, 1 << 24)


def run_tar(words: List[str], archive: str, size: int, unpack: bool = False) -> None:
    """Pack or unpack an archive. Raises NotStaged with the first complaint of tar."""
    program = kind_of(archive) if unpack else "tar"
    # -p: keep modes; -o: files belong to this user
    command = ["tar", *(["-I", program] if program != "tar" else []), "-xpof" if unpack else "-cf", "-", *words]
    with open(archive, "rb" if unpack else "xb", buffering=0) as stream:
        progress.stream, progress.size = stream, max(size, 1)
        ends = (stream, subprocess.DEVNULL) if unpack else (subprocess.DEVNULL, stream)
        done = subprocess.run(command, stdin=ends[0], stdout=ends[1], stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise NotStaged((done.stderr.decode("utf-8", "replace").strip().splitlines() or ["tar failed"])[0])
