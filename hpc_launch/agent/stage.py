"""Copy a Python environment, an image or data to the nodes of a job: pack it once, unpack it on each node.

    stage.py pack STORE SOURCE [--shared-only] [--data HOW] [--shards N] [--inside] [--limit S]
    stage.py needs STORE KEY FOLDER...
    stage.py node STORE KEY FOLDER... [--record F] [--limit S]
    stage.py remove KEY FOLDER... [--memory]

`pack` runs once in a job, on its first node. It prints the key, a digest of the name, size and time of each file; the
archive that the nodes copy, if any; and who mounts an image, `node` or the container runtime (`image`). It writes
STORE/KEY.tar unless that exists; a tar, an image and shards are their own archive. `node` runs once on each node and
prints `staged FOLDER SECONDS NODE KEY`, `reused …`, `mounted …` or `skipped - REASON`; FOLDER/KEY/copy is then a tested
copy. Node I of a job with shards asks for KEY-I. `needs` prints `needed FOLDER` or `reused FOLDER` before that; Slurm
may then put the archive into FOLDER/KEY.sbcast. `remove` deletes the copy. The script decides what follows a failure.

The lock of a copy, FOLDER/KEY.lock, is held by who unpacks or removes it, and shared by the processes that use it.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from hpc_launch.agent import stage_data, write_atomic
from hpc_launch.agent.folders import LOCAL, file_system, make_own_folder
from hpc_launch.agent.stage_environment import (
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
    parser.add_argument("--data", default="", choices=("auto", "copy", "mount", "shard"))
    parser.add_argument("--shards", type=int, default=0, help="nodes, each of which gets its share of the files")
    parser.add_argument("--inside", action="store_true", help="the container runtime mounts squashfs images")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--record", default="", help="a file for what a node uses: lock, path, who mounts it, folder")
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    args = parser.parse_args(arguments)
    began, words = time.monotonic(), args.words
    stage_data.progress.start(args.limit)
    os.umask(0o077)
    try:
        if args.what == "pack":
            data = (args.data, args.shards, args.inside)
            key = pack_data(words[0], words[1], *data) if args.data else pack(words[0], words[1], args.shared_only)
            about = description(words[0], key)
            print("\n".join((key, about["archive"], about.get("mounted_by", ""))))
        elif args.what == "remove":
            remove(words[0], words[1:], memory_only=args.memory)
        elif args.what == "needs":
            print("%s %s" % needs(words[0], words[1], words[2:]))
        else:
            how, root, path, by = use(words[0], words[1], words[2:])
            if args.record:
                write_atomic(args.record, "\n".join((lock_file(root, words[1]), path, by, root, "")))
            print("%s %s %.1f s %s %s" % (how, root, time.monotonic() - began, socket.gethostname(), words[1]))
    except (NotStaged, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print("skipped - %s%s" % (socket.gethostname() + ": " if args.what == "node" else "", reason))
        return 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


# The archive, once for all jobs


def pack(store: str, source: str, shared_only: bool = False, is_data: bool = False) -> str:
    """The key of SOURCE; STORE/KEY.json then describes a complete archive."""
    source = os.path.abspath(source)
    system = file_system(source)
    if shared_only and system in LOCAL:
        raise NotStaged("%s is on this node's own disk (%s)" % (source, system))
    if os.path.isfile(source):
        return _write(store, stage_data.describe("image", [source]))
    python = {} if is_data else python_of(source)  # type: Dict[str, Any]
    entries = walk(source, bytecode=is_data)
    if python:
        refuse_outside_links(source, entries)
    key = key_of(source, python, entries)
    make_own_folder(store)
    with locked(lock_file(store, key), LIMIT_S):
        if not _is_built(store, key):
            _build(store, key, {"kind": "folder", "source": source, "python": python})
    for name in os.listdir(store):
        path = os.path.join(store, name)
        with contextlib.suppress(OSError):
            if name.split(".")[0] == key:
                os.utime(path)
            elif time.time() - os.lstat(path).st_mtime > UNUSED_S:
                os.unlink(path)
    return key


def pack_data(store: str, source: str, how: str, shards: int, inside: bool) -> str:
    """The key of data. `inside`: the container runtime mounts squashfs images, and not the node."""
    kind = "files" if shards else stage_data.kind_of(source)
    if how == "mount" and kind != "squashfs":
        raise NotStaged("%s is not a squashfs image, so it cannot be mounted" % source)
    if kind == "folder":
        return pack(store, source, is_data=True)
    about = stage_data.describe(
        kind, stage_data.files_of(source, shards) if shards else [os.path.abspath(source)], shards
    )
    if kind == "squashfs":
        about["mounted_by"] = "image" if inside else "node"
    if shards or (kind == "squashfs" and how != "copy"):
        about["archive"] = ""  # each node reads the files where they are
    return _write(store, about)


def _write(store: str, about: Dict[str, Any]) -> str:
    make_own_folder(store)
    write_atomic(os.path.join(store, about["key"] + ".json"), json.dumps(about))
    return str(about["key"])


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
        stage_data.run_tar(["-C", source, "."], partial, needed)
        now = walk(source, bytecode=not about["python"])
        if key_of(source, about["python"], now) != key:
            raise NotStaged("%s changed while it was packed" % source)
        about.update(archive=archive, archive_bytes=os.path.getsize(partial), bytes=needed, packed=size_of(now))
        os.rename(partial, archive)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)
    write_atomic(os.path.join(store, key + ".json"), json.dumps(about))


# The copy of a node


def description(store: str, key: str) -> Dict[str, Any]:
    """What `pack` wrote about it; for KEY-I, with the files of node I: every n-th, where the job has n nodes."""
    key, _, node = key.partition("-")
    about = read_description(os.path.join(store, key + ".json"))
    if node:
        about["files"] = about["files"][int(node) :: about["shards"]]
        about["bytes"] = sum(size for _, size, _ in about["files"])
    return about


def needs(store: str, key: str, folders: List[str]) -> Tuple[str, str]:
    """Whether this node has a copy (`reused`) or needs the archive (`needed`), and the folder to put it in."""
    if not folders:
        return "reused", "-"
    root = own_root(folders[0])
    if is_complete(root, key):
        return "reused", root
    about = description(store, key)
    check_room(root, about["bytes"] + about["archive_bytes"])
    return "needed", root


def use(store: str, key: str, folders: List[str]) -> Tuple[str, str, str, str]:
    """How this node got its copy, the folder, the copy or else the image to mount there, and who mounts it."""
    about = description(store, key)
    by = about.get("mounted_by", "")
    if about["archive"] or not by:
        how, root = on_node(store, key, folders)
        return how, root, os.path.join(root, key, "copy"), by
    with open(about["source"], "rb"):
        root = own_root(folders[-1])  # in memory: the folder to mount it at takes none
    touch(lock_file(root, key))
    return "mounted", root, about["source"], by


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
            with locked(lock_file(root, key), max(LIMIT_S, stage_data.progress.limit)):
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
        if "tree" not in about:
            return bool(os.path.getsize(copy) == about["bytes"])
        if about.get("python"):
            check_python(copy, about["python"])
        return bool(size_of(walk(copy, bytecode=not about.get("python"))) == about["tree"])
    except (OSError, ValueError, KeyError, NotStaged):
        return False


def unpack(store: str, key: str, root: str) -> None:
    """Make FOLDER/KEY/copy, whole and tested. Raises NotStaged; then nothing is left."""
    for name in os.listdir(root):  # of processes that were killed: only one that holds the lock writes here
        if name == key or name.startswith(key + ".tmp"):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    about = description(store, key)
    check_room(root, about["bytes"])
    archive, kind, python = about["archive"], about["kind"], about.get("python")
    with contextlib.suppress(OSError):
        sent = os.path.join(root, key + ".sbcast")
        if os.path.getsize(sent) == about["archive_bytes"]:
            archive = sent
    partial = os.path.join(root, "%s.tmp.%d" % (key, os.getpid()))
    copy = os.path.join(partial, "copy")
    os.mkdir(partial, 0o700)
    try:
        if kind in ("image", "squashfs", "files"):
            stage_data.copy_files(about, archive, copy)
        else:
            os.mkdir(copy)
            stage_data.run_tar(["-C", copy], archive, about["archive_bytes"], unpack=True)
        if os.path.isdir(copy):
            about["tree"] = size_of(walk(copy, bytecode=not python))
            if about["tree"] != about.get("packed", about["tree"]):
                raise NotStaged("%s is damaged" % archive)
            if python:
                move(copy, os.path.join(root, key, "copy"), about["source"])
                check_python(copy, python)
                about["tree"] = size_of(walk(copy))
        stage_data.refuse_changed(about)
        write_atomic(os.path.join(partial, "complete"), json.dumps(about))
        os.rename(partial, os.path.join(root, key))
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_broadcast(root: str, key: str) -> None:
    """Remove the archive that Slurm has put there, if it did."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(root, key + ".sbcast"))


def remove(key: str, folders: List[str], memory_only: bool = False) -> None:
    """Delete this node's copies of KEY, unless a process uses them."""
    for folder in folders:
        with contextlib.suppress(NotStaged, OSError):
            if not memory_only or in_memory(folder):
                root = own_root(folder)
                with open(lock_file(root, key)) as stream:
                    last = stream.read()
                if last in ("", os.environ.get("HPC_LAUNCH_JOB_ID", "")):  # else it is to be used by another job
                    _remove_copy(root, key, WAIT_S)


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
