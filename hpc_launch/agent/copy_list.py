"""Lists what hosts that share no folders get of a run, for copies.py.

Of the run folder: the programs, the snapshot of the code, and the files of the attempt except its logs. If asked for,
the working folder too, except for caches, files that may hold secrets, and what `code.exclude` names.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import stat
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterator, List, Sequence

from hpc_launch.agent.copy_protocol import digest_of
from hpc_launch.agent.private_names import is_private, is_skipped

MOST_ENTRIES = 20000
RECORDS = (
    "claim cancel.json diagnosis.json end.json final.json intent.json job.json local.json node-check.json start.json "
    "stuck.json successor.json verdict.json"
).split()
"""Files of an attempt that may change at any time, and that no host reads."""
ELSEWHERE = "elsewhere.json"
"""Says on the sender that the receiver has the run."""
CHECK_KEY = "agent/check-key"
"""By which the node check on each host proves that it belongs to the job: judge.py."""


class TooLargeError(Exception):
    """The folder holds more than code."""


def run_root(run: str, folder: str, whole: bool = False) -> Dict[str, Any]:
    """The part of the run folder, for the attempt in `folder`, or the whole one. Raises OSError."""
    entries = list(below(run, "hooks")) + list(below(run, "code"))
    if whole:
        names = [name for name in sorted(os.listdir(run)) if os.path.isfile(os.path.join(run, name))]
        entries += [*below(run, "journal"), *(entry(run, name) for name in names if name != ELSEWHERE)]
        for name in sorted(os.listdir(os.path.dirname(folder))):
            before = os.path.join(os.path.dirname(folder), name)
            if before != folder:  # with its records, which the next decision counts
                entries += [entry(run, os.path.relpath(one.path, run)) for one in os.scandir(before) if is_plain(one)]
    attempt = os.path.relpath(folder, run)
    for name in [*sorted(os.listdir(folder)), CHECK_KEY]:
        path = os.path.join(attempt, name)
        if name in RECORDS and not whole:
            continue
        if not name.startswith(".") and not name.endswith(".log") and os.path.isfile(os.path.join(run, path)):
            entries.append(entry(run, path))
    folders = [os.path.join(attempt, name) for name in ("logs", "agent/stacks")]
    return {"path": run, "others": 0o022, "folders": folders, "entries": entries}


def is_plain(one: "os.DirEntry[str]") -> bool:
    """Whether it is a file that others may have."""
    return one.is_file(follow_symlinks=False) and not one.name.startswith(".") and one.name != "environment"


def workdir_root(folder: str, exclude: Sequence[str], limit: int, run: str) -> Dict[str, Any]:
    """The working folder. Raises TooLargeError if it has more than `limit` bytes, and OSError."""
    size, entries = 0, []  # type: int, List[List[Any]]
    for path in paths(folder, "", exclude, {os.path.realpath(run), os.path.realpath(os.path.dirname(run))}):
        size += os.lstat(os.path.join(folder, path)).st_size
        if size > limit or len(entries) >= MOST_ENTRIES:
            what = "%d MiB" % (limit >> 20) if size > limit else "%d files" % MOST_ENTRIES
            hint = "name what is no code in `code.exclude`, or raise `code.limit`"
            raise TooLargeError("the working folder %s has more than %s: %s" % (folder, what, hint))
        entries.append([path])
    return {"path": folder, "others": 0o002, "entries": [entry(folder, path) for (path,) in entries]}


def paths(root: str, folder: str, exclude: Sequence[str], runs: Any) -> Iterator[str]:
    """The files and links in a folder, without those that are not copied."""
    for one in sorted(os.scandir(os.path.join(root, folder)), key=lambda one: one.name):
        path = os.path.join(folder, one.name)
        if is_skipped(one.name) or is_private(one.name) or any(fnmatchcase(one.name, words) for words in exclude):
            continue
        if one.is_dir(follow_symlinks=False):
            if os.path.realpath(one.path) not in runs:
                for inside in paths(root, path, exclude, runs):
                    yield inside
        elif one.is_symlink() or os.path.isfile(one.path):
            yield path


def below(root: str, folder: str) -> Iterator[List[Any]]:
    """The entries of all files and links in a folder."""
    for above, folders, names in os.walk(os.path.join(root, folder)):
        links = [name for name in folders if os.path.islink(os.path.join(above, name))]
        for name in sorted(names + links):
            path = os.path.join(above, name)
            if os.path.islink(path) or os.path.isfile(path):
                yield entry(root, os.path.relpath(path, root))


def entry(root: str, path: str) -> List[Any]:
    """A file as [path, mode, size, digest], or a link as [path, link]. Raises OSError."""
    whole = os.path.join(root, path)
    status = os.lstat(whole)
    if stat.S_ISLNK(status.st_mode):
        return [path, os.readlink(whole)]
    return [path, stat.S_IMODE(status.st_mode) & 0o755, status.st_size, digest_of(whole)]
