"""Copy the code of a job to a cluster: its git work tree, into a folder named by its content, so that it goes once."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from hpc_launch.agent.folders import is_private, is_skipped
from hpc_launch.base.errors import UsageError
from hpc_launch.base.run_program import not_ignored
from hpc_launch.job.shell_text import quote
from hpc_launch.remote.clusters import Cluster, ask_host
from hpc_launch.remote.install import copy_to
from hpc_launch.service.listener import Listener

MOST_FILES = 50_000
MOST_BYTES = 2 << 30
"""More is data, not code."""


def copy_code(cluster: Cluster, job: Path, listener: Listener) -> str:
    """Copy the code of a job file, and return the folder there that stands for the folder of the job file.

    Raises UsageError where it is too large, or cannot be read or copied; Unreachable.
    """
    folder = Path(os.path.realpath(job)).parent
    root = next((one for one in (folder, *folder.parents) if os.path.lexists(one / ".git")), folder)
    names = _files(root)
    try:
        name = _digest(root, names)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error
    code, part = quote(cluster.code), f".{name}.part"
    # A copy that is not whole has another name. The newest copy has most files of the next.
    answer = ask_host(
        cluster.host,
        f"mkdir -p -m 700 {code} && cd {code} && if [ -d {name} ]; then echo there; "
        f"else mkdir -p -m 700 {part} && ls -t | head -n 1; fi",
    ).split()
    if answer != ["there"]:
        with listener.doing(f"copying {len(names)} files to {cluster.name}"):
            near = [f"--copy-dest=../{answer[0]}"] if answer else []
            copy_to(
                cluster.host,
                ["--files-from=-", "--from0", *near, f"{root}/"],
                f"{cluster.code}/{part}/",
                "\0".join(names),
            )
            ask_host(cluster.host, f"cd {code} && {{ mv -T {part} {name} 2>/dev/null || [ -d {name} ]; }}")
    return os.path.normpath(os.path.join(cluster.code, name, os.path.relpath(folder, root)))


def _files(root: Path) -> list[str]:
    """The files to copy: those that git does not ignore; without git all, but environments, runs and private files."""
    listed = not_ignored(root)
    if listed is not None:
        found = [one for one in listed if os.path.lexists(root / one) and not _is_folder(root / one)]
    else:
        found = []
        for folder, folders, files in os.walk(root):
            kept = [one for one in folders if not is_skipped(one) and not _is_made(os.path.join(folder, one))]
            found += [os.path.relpath(os.path.join(folder, one), root) for one in files]
            found += [os.path.relpath(path, root) for one in kept if os.path.islink(path := os.path.join(folder, one))]
            folders[:] = kept
            if len(found) > MOST_FILES:
                break
    found = sorted(one for one in found if not is_private(os.path.basename(one)) and not _is_device(root / one))
    size = sum((root / one).lstat().st_size for one in found[: MOST_FILES + 1])
    if len(found) > MOST_FILES or size > MOST_BYTES:
        raise UsageError(
            f"{root} holds more than {MOST_FILES:,} files or {MOST_BYTES >> 30} GiB, which is not only code",
            "put the job file into a git work tree whose .gitignore names the data, or into a folder of its own",
        )
    return found


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _is_made(folder: str) -> bool:
    return any(os.path.lexists(os.path.join(folder, one)) for one in ("pyvenv.cfg", "run.json"))


def _is_device(path: Path) -> bool:
    return not stat.S_ISREG(mode := path.lstat().st_mode) and not stat.S_ISLNK(mode)


def _digest(root: Path, names: list[str]) -> str:
    """A name for these files: the same for the same names, contents and permissions. Raises OSError."""
    whole = hashlib.sha256()
    for name in names:
        path = root / name
        status = path.lstat()
        link = stat.S_ISLNK(status.st_mode)
        content = os.fsencode(os.readlink(path)) if link else hashlib.sha256(path.read_bytes()).digest()
        whole.update(os.fsencode(name) + b"\0%o\0" % (status.st_mode & 0o111) + content + b"\0")
    return whole.hexdigest()[:20]
