"""Whether the folders that lead to a path keep it in its place, or let another user put something else there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from hpc_launch.base.files import FileAccess, has_acl, only_writable_by

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
    raise PermissionError(errno.EPERM, f"every user can replace what is in the folder ({reason})", str(folder))
