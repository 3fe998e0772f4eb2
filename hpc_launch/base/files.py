"""Atomic file writes, also on NFS, Lustre and GPFS, bounded reads, and who can change or replace what is at a path.

The user's name and own folders: state (index, cached answers, crash reports), configuration and cache.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hpc_launch import agent

create_once, write_atomic = agent.create_once, agent.write_atomic
LONGEST = 64 << 20
"""Maximum characters read of a file; records and scripts have thousands."""


def write_output(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write to a path given by the user, as the shell's `>` does: follow links, and write into devices and pipes
    instead of replacing them. Raises OSError, for a folder IsADirectoryError.

    As Linux does with `>` by default (proc(5), protected_symlinks), it does not follow another user's link in a folder
    such as /tmp.
    """
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        return
    if os.path.islink(path):
        folder, owner = os.stat(path.parent), os.lstat(path).st_uid
        open_to_all = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if open_to_all and owner not in (os.geteuid(), folder.st_uid):
            raise PermissionError(errno.EACCES, "a link of another user", str(path))
    write_atomic(Path(os.path.realpath(path)), text, mode=mode)


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as indented JSON."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def read_text(
    path: Path,
    *,
    errors: str = "strict",
    longest: int = LONGEST,
    owner: int | None = None,
) -> str:
    """The text of a file. Raises OSError if it is not a regular file (without waiting for a pipe) or too large."""
    with io.TextIOWrapper(open_regular(path, owner=owner), encoding="utf-8", errors=errors) as stream:
        text = stream.read(longest + 1)
    if len(text) > longest:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return text


def open_regular(path: str | os.PathLike[str], *, owner: int | None = None, links: bool = True) -> BinaryIO:
    """Open a file for reading that another user may have put there. Raises OSError unless it is a regular file.

    Never waits for a pipe, and never reads a device. A link of another user is followed only to a file of the same
    user: it may lead to a file that nobody else can read.

    `owner`: the user who must own it; nobody else may be able to write to it. `links`: whether `path` itself may be a
    symbolic link.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    owner_of_link = 0
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP or not links:
            raise
        owner_of_link = os.lstat(path).st_uid
        descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        if owner is not None and not only_writable_by(owner, FileAccess(status, has_acl(descriptor))):
            raise PermissionError(errno.EPERM, "another user can change the file", os.fspath(path))
        if owner_of_link not in (0, os.geteuid(), status.st_uid):
            raise PermissionError(errno.EACCES, "a link of another user", os.fspath(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_tail(path: Path, size: int, *, before: int | None = None) -> tuple[bytes, int]:
    """The last `size` bytes of a regular file, up to byte `before`, and where they begin. Raises OSError."""
    with open_regular(path) as stream:
        length = stream.seek(0, os.SEEK_END)
        end = length if before is None else min(before, length)
        begin = stream.seek(max(0, end - size))
        return stream.read(end - begin), begin


def next_data(stream: BinaryIO, position: int) -> int:
    """Where the next bytes of a file are that its disk holds, from `position` on: a hole, which reads as zeros, may be
    larger than any disk (lseek(2), SEEK_DATA). The end of the file if there are none."""
    descriptor = stream.fileno()
    here = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(descriptor).st_size if error.errno == errno.ENXIO else position
    finally:
        os.lseek(descriptor, here, os.SEEK_SET)


class FileAccess(NamedTuple):
    """Who can change a file or folder."""

    status: os.stat_result
    has_acl: bool
    """Whether it has an access ACL: the group's bits of its mode then limit the users and groups in it (acl(5))."""


def access_to(file: int | str | os.PathLike[str], *, links: bool = True) -> FileAccess:
    """Who can change what is at a path, or is open as this descriptor. Raises OSError."""
    if isinstance(file, int) or links:
        return FileAccess(os.stat(file), has_acl(file))
    return FileAccess(os.lstat(file), not os.path.islink(file) and has_acl(file))


def has_acl(file: int | str | os.PathLike[str]) -> bool:
    """Whether a file or folder has an access ACL, or may have one that cannot be read. Follows links."""
    try:
        os.getxattr(file, "system.posix_acl_access")
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.EOPNOTSUPP)
    return True


def only_writable_by(user: int, file: FileAccess) -> bool:
    """Whether only this user (and root) can change a file or folder."""
    status = file.status
    if status.st_uid != user or status.st_mode & stat.S_IWOTH:
        return False
    return not status.st_mode & stat.S_IWGRP or (not file.has_acl and _is_private_group(user, status.st_gid))


def _is_private_group(user: int, group: int) -> bool:
    """Whether a group has no member but this user, as where each user has a group of the same name."""
    import grp
    import pwd

    try:
        known, account = grp.getgrgid(group), pwd.getpwuid(user)
    except KeyError:
        return False
    return account.pw_gid == group and known.gr_name == account.pw_name and set(known.gr_mem) <= {account.pw_name}


def without_waiting(name: str, flags: int) -> int:
    """An opener that does not wait for the other end of a pipe; O_NONBLOCK has no effect on regular files."""
    return os.open(name, flags | os.O_NONBLOCK)


MOST_LINKS = 40
"""Links that the kernel follows in one path."""


def way_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and link that the kernel passes on the way to `path`, and `path` itself, with their status.

    Raises OSError if there is no such path.
    """
    here, links = Path("/"), 0
    yield here, here.lstat()
    left = list(reversed(path.absolute().parts[1:]))
    while left:
        name = left.pop()
        if name == "..":
            here = here.parent
            continue
        one = here / name
        status = one.lstat()
        yield one, status
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = Path(os.readlink(one))
            here = Path("/") if target.is_absolute() else here
            left += reversed([part for part in target.parts if part != "/"])
        else:
            here = one


def only_these_can_move(path: Path, users: Collection[int]) -> bool:
    """Whether nobody but these users (and root) can put something else in the place of `path`.

    In a folder with the sticky bit, only the folder's owner and that of a file can rename the file. Raises OSError.
    """
    *above, _ = way_to(path)
    for one, status in above:
        if status.st_uid not in users:
            return False
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if not (
            stat.S_ISLNK(status.st_mode) or sticky or only_writable_by(status.st_uid, FileAccess(status, has_acl(one)))
        ):
            return False
    return True


def refuse_replaceable(folder: Path) -> None:
    """Raise OSError if any user may replace what is in the folder: it would not stay the user's own.

    That is so if every user can rename something in it or in a folder above, or could have made one of them and can
    rename there as its owner. A folder that belongs to a group of the user, such as a project's, counts as the group's.
    """
    user, groups = os.getuid(), {os.getegid(), *os.getgroups()}
    for one, status in way_to(folder):
        own, is_link = status.st_uid in (0, user), stat.S_ISLNK(status.st_mode)
        by_anybody = not own and one.parent.stat().st_mode & stat.S_IWOTH
        if by_anybody and (is_link or status.st_gid not in groups):
            _refuse(one, "it belongs to another user, in a folder in which every user can create files")
        if is_link:
            continue
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            _refuse(one, "it is open to all without the sticky bit")
        if status.st_mode & stat.S_IWOTH and not own:
            _refuse(one, "it is open to all and belongs to another user")


def _refuse(folder: Path, reason: str) -> None:
    raise PermissionError(errno.EPERM, f"the folder is world-writable ({reason})", str(folder))


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
