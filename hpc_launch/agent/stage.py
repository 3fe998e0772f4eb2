"""Copy a Python environment or an image to the nodes of a job: pack it once, unpack it on each node.

    stage.py pack STORE SOURCE [--shared-only] [--limit S]
    stage.py needs STORE KEY FOLDER...
    stage.py node STORE KEY FOLDER... [--record F] [--limit S]
    stage.py remove KEY FOLDER... [--memory]

`pack` runs once in a job, on its first node, and prints the key: a digest of the name, size and time of each file. It
writes STORE/KEY.tar unless that exists. `node` runs once on each node and prints `staged FOLDER SECONDS`, `reused
FOLDER SECONDS` or `skipped - REASON`; FOLDER/KEY/copy is then a tested copy. `needs` prints `needed FOLDER` or
`reused FOLDER` before that; Slurm may then put the archive into FOLDER/KEY.sbcast. `remove` deletes the copy. Nothing
here may end a job: if it fails, the training uses the original.

The lock of a copy, FOLDER/KEY.lock, is held by who unpacks or removes it, and shared by the processes that use it.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from typing import Any, Dict, List, Optional, Tuple

from hpc_launch.agent import write_atomic
from hpc_launch.agent.folders import LOCAL, file_system, make_own_folder
from hpc_launch.agent.stage_environment import (
    VERSION,
    NotStaged,
    check_python,
    check_room,
    free_bytes,
    in_memory,
    key_of,
    lock_file,
    locked,
    move,
    own_root,
    python_of,
    read_description,
    refuse_outside_links,
    size_of,
    size_text,
    touch,
    walk,
)

UNUSED_S = 86400.0
"""Seconds after which an unused copy, and an unused archive, is removed."""
WAIT_S = 15.0
"""Seconds to wait at the end of a job for the processes that still use the copy, such as the watcher."""
LIMIT_S = 600.0


def main(arguments: Optional[List[str]] = None) -> int:
    """Do what the command line says. 1: not staged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "needs", "node", "remove"))
    parser.add_argument("words", nargs="+")
    parser.add_argument("--shared-only", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--record", default="", help="folder for a file with this node's FOLDER, named after the node")
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    args = parser.parse_args(arguments)
    began, words = time.monotonic(), args.words

    def expired(*_: Any) -> None:
        raise NotStaged("it timed out after %d s" % args.limit)

    signal.signal(signal.SIGALRM, expired)  # a system call may hang
    signal.setitimer(signal.ITIMER_REAL, args.limit)
    os.umask(0o077)
    try:
        if args.what == "pack":
            print(pack(words[0], words[1], shared_only=args.shared_only))
        elif args.what == "remove":
            remove(words[0], words[1:], memory_only=args.memory)
        elif args.what == "needs":
            print("%s %s" % needs(words[0], words[1], words[2:]))
        else:
            how, folder = on_node(words[0], words[1], words[2:])
            if args.record:
                write_atomic(os.path.join(args.record, socket.gethostname()), folder + "\n")
            print("%s %s %.1f" % (how, folder, time.monotonic() - began))
    except (NotStaged, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print("skipped - %s%s" % (socket.gethostname() + ": " if args.what == "node" else "", reason))
        return 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


# The archive, once for all jobs


def pack(store: str, source: str, shared_only: bool = False) -> str:
    """The key of SOURCE; STORE/KEY.json then describes a complete archive."""
    source = os.path.abspath(source)
    system = file_system(source)
    if shared_only and system in LOCAL:
        raise NotStaged("%s is on this node's own disk (%s)" % (source, system))
    if os.path.isfile(source):
        return _describe_image(store, source)
    python = python_of(source)
    entries = walk(source)
    refuse_outside_links(source, entries)
    key = key_of(source, python, entries)
    make_own_folder(store)
    with locked(lock_file(store, key), LIMIT_S):
        if not _is_built(store, key):
            _build(store, key, {"kind": "environment", "source": source, "python": python})
    for name in os.listdir(store):
        path = os.path.join(store, name)
        with contextlib.suppress(OSError):
            if name.split(".")[0] == key:
                os.utime(path)
            elif time.time() - os.lstat(path).st_mtime > UNUSED_S:
                os.unlink(path)
    return key


def _is_built(store: str, key: str) -> bool:
    """Whether description and archive are complete."""
    try:
        about = read_description(os.path.join(store, key + ".json"))
        return bool(os.path.getsize(about["archive"]) == about["archive_bytes"])
    except (OSError, ValueError, KeyError, NotStaged):
        return False


def _build(store: str, key: str, about: Dict[str, Any]) -> None:
    source = about["source"]
    needed = sum(one.size + 1024 for one in walk(source, bytecode=True))
    if needed > free_bytes(store):
        raise NotStaged("%s has no room for an archive of %s" % (store, size_text(needed)))
    archive = os.path.join(store, key + ".tar")
    partial = "%s.tmp-%s-%d" % (archive, socket.gethostname(), os.getpid())
    try:
        # Uncompressed: one large file is read faster than gzip unpacks it.
        run_tar(["-cf", partial, "-C", source, "."])
        now = walk(source)
        if key_of(source, about["python"], now) != key:
            raise NotStaged("%s changed while it was packed" % source)
        about.update(archive=archive, archive_bytes=os.path.getsize(partial), bytes=needed, packed=size_of(now))
        os.rename(partial, archive)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)
    write_atomic(os.path.join(store, key + ".json"), json.dumps(about))


def run_tar(words: List[str]) -> None:
    """Run tar. Raises NotStaged with its first complaint."""
    done = subprocess.run(["tar", *words], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise NotStaged((done.stderr.decode("utf-8", "replace").strip().splitlines() or ["tar failed"])[0])


def _describe_image(store: str, image: str) -> str:
    """An image is one file and therefore its own archive."""
    made = os.stat(image)
    identity = (VERSION, "image", image, made.st_size, made.st_mtime_ns, made.st_ino)
    key = hashlib.sha256(repr(identity).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    make_own_folder(store)
    about = {"kind": "image", "source": image, "archive": image, "archive_bytes": made.st_size, "bytes": made.st_size}
    about["mtime_ns"] = made.st_mtime_ns
    write_atomic(os.path.join(store, key + ".json"), json.dumps(about))
    return key


# The copy of a node


def needs(store: str, key: str, folders: List[str]) -> Tuple[str, str]:
    """Whether this node has a copy (`reused`) or needs the archive (`needed`), and the folder to put it in."""
    if not folders:
        return "reused", "-"
    root = own_root(folders[0])
    if is_complete(root, key):
        return "reused", root
    about = read_description(os.path.join(store, key + ".json"))
    check_room(root, about["bytes"] + about["archive_bytes"])
    return "needed", root


def on_node(store: str, key: str, folders: List[str]) -> Tuple[str, str]:
    """How this node got its copy (`staged`, `reused`), and the folder."""
    reasons, roots = [], []  # type: List[str], List[str]
    for folder in folders:
        try:
            roots.append(own_root(folder))
        except (NotStaged, OSError) as error:
            reasons.append(str(error))
    for root in roots:
        if is_complete(root, key):
            touch(lock_file(root, key))
            remove_broadcast(root, key)
            return "reused", root
    for root in roots:
        try:
            with locked(lock_file(root, key), LIMIT_S):
                touch(lock_file(root, key))
                if is_complete(root, key):  # another job on this node has just unpacked it
                    return "reused", root
                unpack(store, key, root)
            _remove_others(root, key)
            return "staged", root
        except (NotStaged, OSError) as error:
            reasons.append(str(error))
        finally:
            remove_broadcast(root, key)
    raise NotStaged("; ".join(reasons) or "no folder on the node's own disk is known")


def is_complete(root: str, key: str) -> bool:
    """Whether the copy is there with every file: programs that clear temporary folders may delete some of them."""
    folder = os.path.join(root, key)
    copy = os.path.join(folder, "copy")
    try:
        about = read_description(os.path.join(folder, "complete"))
        if about["kind"] == "image":
            return bool(os.path.getsize(copy) == about["bytes"])
        check_python(copy, about["python"])
        return bool(size_of(walk(copy)) == about["tree"])
    except (OSError, ValueError, KeyError, NotStaged):
        return False


def unpack(store: str, key: str, root: str) -> None:
    """Make FOLDER/KEY/copy, whole and tested. Raises NotStaged; then nothing is left."""
    for name in os.listdir(root):  # of processes that were killed: only one that holds the lock writes here
        if name == key or name.startswith(key + ".tmp"):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    about = read_description(os.path.join(store, key + ".json"))
    check_room(root, about["bytes"])
    archive = about["archive"]
    with contextlib.suppress(OSError):
        if os.path.getsize(broadcast_file(root, key)) == about["archive_bytes"]:
            archive = broadcast_file(root, key)
    partial = os.path.join(root, "%s.tmp.%d" % (key, os.getpid()))
    copy = os.path.join(partial, "copy")
    os.mkdir(partial, 0o700)
    try:
        if about["kind"] == "image":
            shutil.copyfile(archive, copy)
            made = os.stat(about["source"])
            same = (made.st_size, made.st_mtime_ns) == (about["bytes"], about["mtime_ns"])
            if not same or os.path.getsize(copy) != made.st_size:
                raise NotStaged("%s changed while it was copied" % about["source"])
        else:
            os.mkdir(copy)
            run_tar(["-xpof", archive, "-C", copy])  # -p: keep modes; -o: files belong to this user
            if size_of(walk(copy)) != about["packed"]:
                raise NotStaged("%s is damaged" % archive)
            move(copy, os.path.join(root, key, "copy"), about["source"])
            check_python(copy, about["python"])
            about["tree"] = size_of(walk(copy))
        write_atomic(os.path.join(partial, "complete"), json.dumps(about))
        os.rename(partial, os.path.join(root, key))
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def broadcast_file(root: str, key: str) -> str:
    """Where Slurm puts the archive, if it does."""
    return os.path.join(root, key + ".sbcast")


def remove_broadcast(root: str, key: str) -> None:
    """Remove that archive."""
    with contextlib.suppress(OSError):
        os.unlink(broadcast_file(root, key))


def remove(key: str, folders: List[str], memory_only: bool = False) -> None:
    """Delete this node's copies of KEY, unless a process uses them."""
    for folder in folders:
        with contextlib.suppress(NotStaged, OSError):
            if not memory_only or in_memory(folder):
                _remove_copy(own_root(folder), key, WAIT_S)


def _remove_others(root: str, key: str) -> None:
    """Delete copies that nobody has used for a day."""
    for other in {name.split(".")[0] for name in os.listdir(root)} - {key}:
        with contextlib.suppress(OSError, NotStaged):
            if time.time() - os.lstat(lock_file(root, other)).st_mtime > UNUSED_S:
                _remove_copy(root, other, 0)


def _remove_copy(root: str, key: str, seconds: float) -> None:
    with locked(lock_file(root, key), seconds):
        with contextlib.suppress(FileNotFoundError):  # half a copy must not look like a whole one
            os.rename(os.path.join(root, key), os.path.join(root, "%s.tmp-%s" % (key, os.urandom(4).hex())))
        for name in os.listdir(root):
            if name.startswith(key + ".tmp"):
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        remove_broadcast(root, key)
        os.unlink(lock_file(root, key))
