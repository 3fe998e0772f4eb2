"""Copy a Python environment or an image to the nodes of a job: pack it once, unpack it on each node.

    python3 -I -S stage.py pack STORE SOURCE [--shared-only] [--limit S]
    python3 -I -S stage.py needs STORE KEY FOLDER...
    python3 -I -S stage.py node STORE KEY FOLDER... [--record F] [--limit S]
    python3 -I -S stage.py remove KEY FOLDER... [--memory]

Self-contained: standard library of Python 3.6 or later, copied into the run folder with stage_disk.py
(private folders, locks, free space), stage_tree.py (the files of an environment), stage_pack.py
and stage_unpack.py.

`pack` runs once in a job, on its first node, and prints the key: a digest of the name, size and time of each file. It
writes STORE/KEY.tar unless that exists. `node` runs once on each node and prints `staged FOLDER SECONDS`, `reused
FOLDER SECONDS` or `skipped - REASON`; FOLDER/KEY/copy is then a verified copy. `needs` prints `needed FOLDER` or
`reused FOLDER` before that; Slurm may then put the archive into FOLDER/KEY.sbcast. `remove` deletes the copy. Nothing
here may end a job: if it fails, the training uses the original.

A copy of an environment works because Python finds its prefix from its own path (site.py, PEP 405). The first lines of
console scripts and absolute paths in .pth files are rewritten. Everything else that holds the original's path still
refers to the original, which exists.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import tarfile
import time
from typing import Any, List, Optional, Tuple

from hpc_launch.agent.stage_disk import (
    UNUSED_S,
    Deadline,
    NotStaged,
    check_room,
    in_memory,
    lock_file,
    locked,
    own_root,
    read_description,
    remove_broadcast,
    touch,
    write_text,
)
from hpc_launch.agent.stage_pack import pack
from hpc_launch.agent.stage_unpack import is_complete, unpack

RECENT_S = 600.0
"""Seconds for which a copy of an older state of the environment is kept: its job may not have started it yet."""
WAIT_S = 15.0
"""Seconds to wait at the end of a job for the processes that still use the copy, such as the watcher."""


def main(arguments: List[str]) -> int:
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
            touch(lock_file(root, key))
            remove_broadcast(root, key)
            return "reused", root
    for root in roots:
        try:
            with locked(lock_file(root, key), deadline) as lock:
                touch(lock.name)
                if is_complete(root, key):  # another job on this node has just unpacked it
                    return "reused", root
                unpack(store, key, root, deadline)
            _remove_others(root, key)
            return "staged", root
        except (NotStaged, OSError, EOFError, tarfile.TarError) as error:
            reasons.append(str(error))
        finally:
            remove_broadcast(root, key)
    raise NotStaged("; ".join(reasons) or "no folder on the node's own disk is known")


def remove(key: str, folders: List[str], memory_only: bool = False) -> None:
    """Delete this node's copies of KEY, unless a process uses them."""
    for folder in folders:
        with contextlib.suppress(NotStaged, OSError):
            if not memory_only or in_memory(folder):
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
        with contextlib.suppress(FileNotFoundError):  # half a copy must not look like a whole one
            os.rename(os.path.join(root, key), os.path.join(root, "%s.tmp-%s" % (key, os.urandom(4).hex())))
        for name in os.listdir(root):
            if name.startswith(key + ".tmp"):
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        remove_broadcast(root, key)
        os.unlink(lock.name)
