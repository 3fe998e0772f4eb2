"""A read-only file system with a delay, as of a busy parallel file system: FUSE's protocol, without libraries.

    python -m benchmarks.slow_disk SOURCE TARGET --delay 0.002 --bandwidth 500e6

Shows SOURCE at TARGET. Each request that a parallel file system sends to its servers (look-up, attributes, open, list,
read) takes the delay, a read also its share of the bandwidth. Names, attributes and data are cached as long as the
kernel likes; a new mount begins with an empty cache. Ends when TARGET is unmounted. Needs root.
The protocol: include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import argparse
import errno
import os
import stat
import struct
import threading
import time
from enum import IntEnum

from tests.cluster.syscalls import mount

HEADER, ANSWER = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")


class Code(IntEnum):
    """enum fuse_opcode."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    READLINK = 5
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    BATCH_FORGET = 42


SILENT = frozenset((Code.FORGET, Code.INTERRUPT, Code.BATCH_FORGET))
"""Requests without an answer."""
SLOW = frozenset((Code.LOOKUP, Code.GETATTR, Code.READLINK, Code.OPEN, Code.READ, Code.READDIR))
ASYNC_READ, PARALLEL_DIROPS, MAX_PAGES = 1 << 0, 1 << 18, 1 << 22
KEEP_CACHE, CACHE_DIR = 1 << 1, 1 << 3
VALID_S = 3600
PAGES = 256
THREADS = 32


class SlowDisk:
    """The files below `source`, by the numbers that the kernel knows them by."""

    def __init__(self, source: str, delay: float, bandwidth: float) -> None:
        self.delay, self.bandwidth = delay, bandwidth
        self.paths, self.numbers = {1: source}, {source: 1}
        self.lock = threading.Lock()
        self.device = os.open("/dev/fuse", os.O_RDWR)

    def mount(self, target: str) -> None:
        """Show the files at `target`, for every user."""
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
        mount("slow", target, "fuse", options=options)

    def serve(self) -> None:
        """Answer requests until the end of the mount."""
        while True:
            try:
                request = os.read(self.device, (PAGES + 1) * 4096 + 4096)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return  # ENODEV: unmounted
            _, code, unique, number, *_ = HEADER.unpack_from(request)
            if code in SILENT:
                continue
            try:
                problem, data = 0, self.answer(code, number, request[HEADER.size :])
            except OSError as error:
                problem, data = -(error.errno or errno.EIO), b""
            if code in SLOW:
                time.sleep(self.delay + (len(data) / self.bandwidth if code == Code.READ else 0))
            try:
                os.write(self.device, ANSWER.pack(ANSWER.size + len(data), problem, unique) + data)
            except OSError:  # the request was interrupted
                continue

    def answer(self, code: int, number: int, body: bytes) -> bytes:
        """The data of an answer. Raises OSError."""
        path = self.paths.get(number, "")
        match code:
            case Code.INIT:
                major, minor, readahead, flags = struct.unpack_from("<IIII", body)
                flags &= ASYNC_READ | PARALLEL_DIROPS | MAX_PAGES
                return struct.pack(
                    "<IIIIHHIIHHI28x", major, min(minor, 31), readahead, flags, 64, 48, 4096, 1, PAGES, 0, 0
                )
            case Code.LOOKUP:
                return self.entry(os.path.join(path, os.fsdecode(body.rstrip(b"\0"))))
            case Code.GETATTR:
                return struct.pack("<QII", VALID_S, 0, 0) + attributes(os.lstat(path))
            case Code.READLINK:
                return os.fsencode(os.readlink(path))
            case Code.OPEN:
                (flags,) = struct.unpack_from("<I", body)
                if flags & (os.O_WRONLY | os.O_RDWR):
                    raise OSError(errno.EROFS, "read-only")
                return struct.pack("<QII", os.open(path, os.O_RDONLY), KEEP_CACHE, 0)
            case Code.READ:
                handle, offset, size = struct.unpack_from("<QQI", body)
                return os.pread(handle, size, offset)
            case Code.RELEASE:
                os.close(struct.unpack_from("<Q", body)[0])
                return b""
            case Code.OPENDIR:
                return struct.pack("<QII", 0, KEEP_CACHE | CACHE_DIR, 0)
            case Code.READDIR:
                _, offset, size = struct.unpack_from("<QQI", body)
                return listing(path, offset, size)
            case Code.STATFS:
                found = os.statvfs(path)
                counts = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
                return struct.pack("<QQQQQIIII24x", *counts, found.f_bsize, 255, found.f_frsize, 0)
            case Code.RELEASEDIR:
                return b""
            case _:  # the kernel does not ask again
                raise OSError(errno.ENOSYS, "not implemented")

    def entry(self, path: str) -> bytes:
        """What is known of a file, with its number."""
        found = os.lstat(path)
        with self.lock:
            number = self.numbers.setdefault(path, len(self.numbers) + 1)
            self.paths[number] = path
        return struct.pack("<QQQQII", number, 0, VALID_S, VALID_S, 0, 0) + attributes(found)


def attributes(found: os.stat_result) -> bytes:
    """struct fuse_attr."""
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    seconds, rests = (one // 10**9 for one in times), (one % 10**9 for one in times)
    owner = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_rdev, 4096, 0)
    return struct.pack("<QQQQQQIIIIIIIIII", found.st_ino, found.st_size, found.st_blocks, *seconds, *rests, *owner)


def listing(path: str, offset: int, size: int) -> bytes:
    """struct fuse_dirent of each name from `offset` on."""
    data = b""
    with os.scandir(path) as items:
        entries = sorted(items, key=lambda item: item.name)
    for at, item in enumerate(entries[offset:], offset + 1):
        name = os.fsencode(item.name)
        kind = stat.S_IFMT(item.stat(follow_symlinks=False).st_mode) >> 12
        one = struct.pack("<QQII", item.inode(), at, len(name), kind) + name
        one += b"\0" * (-len(one) % 8)
        if len(data) + len(one) > size:
            break
        data += one
    return data


def main() -> None:
    """Mount, print `mounted`, and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--delay", type=float, default=0.002)
    parser.add_argument("--bandwidth", type=float, default=500e6)
    args = parser.parse_args()
    disk = SlowDisk(args.source, args.delay, args.bandwidth)
    threads = [threading.Thread(target=disk.serve) for _ in range(THREADS)]
    disk.mount(args.target)
    for thread in threads:
        thread.start()
    print("mounted", flush=True)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
