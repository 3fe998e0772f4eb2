"""Folders: what is copied of them, their file system, and whether other users can replace them. Runs as text, too.

    folders.py RUN ATTEMPT TOKEN WORKDIR COPIED   sent to a host by copies.py

There it prepares the folders for a copy of the run and prints `shared` if the host has the first one's folder, or
`ready`, and `rsync` if the host has that.

Hosts that share no folders get of the run folder: the programs, the snapshot of the code, and the files of the attempt
except its logs. If asked for, the working folder too, except for caches, files that may hold secrets, and what
`code.exclude` names.

Self-contained: standard library of Python 3.6 or later.
"""

import contextlib
import os
import shutil
import stat
import sys
from fnmatch import fnmatchcase
from typing import Callable, Iterator, List, Sequence, Set

FIRST_HOST = os.path.join("agent", "first-host")
"""In an attempt folder: only those hosts see it that share the folder with the first one."""


LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs jfs overlay squashfs erofs iso9660 tmpfs ramfs rootfs devtmpfs".split()
)
"""File systems that only this node uses. All others count as shared."""


class NotOwnError(OSError):
    """Why a folder cannot be used."""


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


def make_own_folder(path: str, others: int = 0o077) -> None:
    """Create a private folder unless it is there. Raises OSError, and NotOwnError unless it is this user's, without
    the permissions `others`."""
    if not os.path.lexists(path):
        os.makedirs(path, 0o700, exist_ok=True)
    made = os.lstat(path)
    if not stat.S_ISDIR(made.st_mode) or made.st_uid != os.getuid() or made.st_mode & others:
        raise NotOwnError("%s is not a folder that only you can change" % path)


def refuse_replaceable(place: str) -> None:
    """Raise NotOwnError if another user can replace what is in a folder, or a folder above it."""
    while True:
        made = os.stat(place)
        writable = made.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not made.st_mode & stat.S_ISVTX
        if made.st_uid not in (0, os.getuid()) or writable:
            raise NotOwnError("others can replace files in %s" % place)
        if place == "/":
            return
        place = os.path.dirname(place)


MOST_ENTRIES = 20000
ELSEWHERE = "elsewhere.json"
"""Says on the sender that the receiver has the run."""
SKIPPED = ("__pycache__", ".git", ".hg", ".svn", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache")
PRIVATE = tuple(
    ".env .env.* *.env .envrc *.pem *.key *.p12 *.pfx *.jks *.keytab *.kdbx *.gpg *.asc secret secret.* secrets "
    "secrets.* *.secret *.secrets .netrc _netrc .pgpass .my.cnf .git-credentials .pypirc .npmrc .s3cfg .boto .htpasswd "
    "credential* .credential* token token.* *.token *_token api_key* *apikey* id_* *.ppk known_hosts authorized_keys "
    "kaggle.json service-account*.json service_account*.json kubeconfig* .ssh .aws .azure .gcloud .gnupg .kube .docker "
    ".huggingface .config".split()
)
"""In any case of letters, except Python files."""


def is_skipped(name: str) -> bool:
    """Whether a file or folder of this name is no code."""
    return any(fnmatchcase(name, pattern) for pattern in SKIPPED)


def is_private(name: str) -> bool:
    """Whether a file or folder of this name may hold secrets."""
    name = name.lower()
    return not name.endswith(".py") and any(fnmatchcase(name, pattern) for pattern in PRIVATE)


class TooLargeError(Exception):
    """The folder holds more than code."""


def run_files(run: str, attempt: str, whole: bool = False) -> List[str]:
    """What hosts get of a run folder for this attempt; `whole`: with the records of the run. Raises OSError."""
    folders = ["hooks", "code", *(["journal"] if whole else [])]
    found = [path for name in folders for path in below(run, name)]
    for name in sorted(os.listdir(os.path.dirname(attempt))) if whole else []:
        before = os.path.join(os.path.dirname(attempt), name)
        if before != attempt:  # with its records, which the next decision counts
            found += plain_files(run, before, lambda name: name != "environment")
    if whole:
        found += plain_files(run, run, lambda name: name != ELSEWHERE)
    # Without what changes at any time, and no host reads.
    found += plain_files(run, attempt, lambda name: whole or not (name == "claim" or name.endswith(".json")))
    return found


def plain_files(run: str, folder: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    """The files in a folder, except logs and hidden ones."""
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.startswith(".") and not name.endswith(".log") and wanted(name) and os.path.isfile(path):
            yield os.path.relpath(path, run)


def workdir_files(folder: str, exclude: Sequence[str], limit: int, run: str) -> List[str]:
    """The files of the working folder. Raises TooLargeError if it has more than `limit` bytes, and OSError."""
    size, found = 0, []  # type: int, List[str]
    for path in code_paths(folder, "", exclude, {os.path.realpath(run), os.path.realpath(os.path.dirname(run))}):
        size += os.lstat(os.path.join(folder, path)).st_size
        if size > limit or len(found) >= MOST_ENTRIES:
            what = "%d MiB" % (limit >> 20) if size > limit else "%d files" % MOST_ENTRIES
            hint = "list what is not code in `code.exclude`, or raise `code.limit`"
            raise TooLargeError("the working folder %s has more than %s: %s" % (folder, what, hint))
        found.append(path)
    return found


def code_paths(root: str, folder: str, exclude: Sequence[str], runs: Set[str]) -> Iterator[str]:
    """The files and links in a folder, without those that are not copied."""
    for one in sorted(os.scandir(os.path.join(root, folder)), key=lambda one: one.name):
        path = os.path.join(folder, one.name)
        if is_skipped(one.name) or is_private(one.name) or any(fnmatchcase(one.name, words) for words in exclude):
            continue
        if one.is_dir(follow_symlinks=False):
            if os.path.realpath(one.path) not in runs:
                yield from code_paths(root, path, exclude, runs)
        elif one.is_symlink() or os.path.isfile(one.path):
            yield path


def below(root: str, folder: str) -> Iterator[str]:
    """All files and links in a folder."""
    for above, folders, names in os.walk(os.path.join(root, folder)):
        links = [name for name in folders if os.path.islink(os.path.join(above, name))]
        for name in sorted(names + links):
            path = os.path.join(above, name)
            if os.path.islink(path) or os.path.isfile(path):
                yield os.path.relpath(path, root)


def prepare(run: str, attempt: str, token: str, workdir: str, copied: str) -> str:
    """Make the folders of a copy. Returns what the host prints."""
    with contextlib.suppress(OSError), open(os.path.join(attempt, FIRST_HOST)) as file:
        if file.read() == token:
            return "shared"
    if workdir and not copied and not os.path.isdir(workdir):
        raise NotOwnError("it has no folder %s: create it, or set `code: {copy_workdir: true}`" % workdir)
    for folder, others in [(run, 0o022), *([(workdir, 0o002)] if copied else [])]:
        make_own_folder(folder, others)
        refuse_replaceable(os.path.dirname(os.path.realpath(folder)))
    for name in ("logs", os.path.join("agent", "stacks")):
        os.makedirs(os.path.join(attempt, name), exist_ok=True)
    return "ready rsync" if shutil.which("rsync") else "ready"


def main(words: List[str]) -> int:
    """Prepare this host."""
    os.umask(0o022)
    try:
        print(prepare(*words))
    except (OSError, NotOwnError) as error:
        sys.stderr.write("%s\n" % error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
