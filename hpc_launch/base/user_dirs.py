"""The user's name, and the user's folders for state (index, cached answers, crash reports), configuration and cache."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hpc_launch.base.files import access_to, only_writable_by, refuse_replaceable


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/hpc-launch`, by default under `~/.local/state`. May not exist."""
    return _xdg(environment, "XDG_STATE_HOME", ".local/state")


def config_folder() -> Path:
    """`$XDG_CONFIG_HOME/hpc-launch`, by default under `~/.config`: the user's settings."""
    return _xdg(os.environ, "XDG_CONFIG_HOME", ".config")


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/hpc-launch`, by default under `~/.cache`: files that can be regenerated."""
    return _xdg(os.environ, "XDG_CACHE_HOME", ".cache")


def make_folder(folder: Path, *, mode: int = 0o755) -> None:
    """Create `folder` and its missing parents, in which nobody else can write, whatever the umask. Raises OSError."""
    missing = [folder, *folder.parents]
    for one in reversed(missing[: next((at for at, parent in enumerate(missing) if os.path.exists(parent)), 0)]):
        with suppress(FileExistsError):
            one.mkdir(mode=mode)  # `parents=True` would create the parents by the umask


def make_own_folder(folder: Path) -> None:
    """Like `make_folder`. Raises OSError if another user can change the folder, or replace it."""
    make_folder(folder)
    refuse_replaceable(folder)
    if not only_writable_by(os.getuid(), access_to(folder, links=False)):
        raise PermissionError(errno.EPERM, "another user can change the folder", str(folder))


def make_private(folder: Path) -> Path:
    """Create `folder` and its parents, accessible only to the user. Raises OSError.

    If it exists and others can write to it, that permission is removed.
    """
    make_folder(folder, mode=0o700)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if status.st_uid == os.getuid() and status.st_mode & 0o022:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
    return folder


def user() -> str:
    """The user's name, or the numeric user id if it has none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())


def _xdg(environment: Mapping[str, str], name: str, default: str) -> Path:
    """A folder by the XDG base directory specification, which ignores values that are not absolute."""
    given = environment.get(name, "")
    base = given if given.startswith("/") else os.path.join(environment.get("HOME") or os.path.expanduser("~"), default)
    return Path(base) / "hpc-launch"
