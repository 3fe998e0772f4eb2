"""Read and delete a folder that is the user's own throughout, whatever is in it: no link is followed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

TOMB = ".hpc-launch-deleted-"
"""Begins the name of what is being deleted. If the deletion is killed, the rest has this name."""


def contents(name: str, place: int | None = None) -> Iterator[tuple[str, os.stat_result]]:
    """The path and status of all in a folder except for folders. `place`: a descriptor of the folder that `name` is in.

    Raises OSError for what must not be deleted: what belongs to another user, another mount (also a bind mount), and
    what a folder without write permission protects.
    """
    mounts = set()

    def stop(error: OSError) -> None:
        raise error

    for path, folders, files, descriptor in os.fwalk(name, onerror=stop, dir_fd=place):
        # proc(5): a bind mount has the device of what it shows, but an id of its own.
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text("ascii").splitlines()
        mounts.add(next(line for line in lines if line.startswith("mnt_id:")))
        for one in (".", *folders, *files):
            status = os.stat(one, dir_fd=descriptor, follow_symlinks=False)
            why = "it belongs to another user" if status.st_uid != os.geteuid() else None
            if one == "." and ~status.st_mode & stat.S_IRWXU:
                why = "it is write-protected"
            if why or len(mounts) > 1:
                raise PermissionError(
                    errno.EPERM, why or "something is mounted there", os.path.normpath(os.path.join(path, one))
                )
            if not stat.S_ISDIR(status.st_mode):
                yield os.path.join(path, one), status


def delete(path: Path, is_same: Callable[[Path], bool]) -> None:
    """Delete a file or folder: rename it, so that nobody finds it any more, check it once more, and delete it.

    `is_same` tells by the new path whether it is unchanged. Raises OSError: nothing is deleted, or the rest has a name
    that begins with TOMB.
    """
    place = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        tomb = path.name if path.name.startswith(TOMB) else f"{TOMB}{os.urandom(8).hex()}"
        if os.readlink(f"/proc/self/fd/{place}") != str(path.parent):
            raise OSError(errno.ELOOP, "a link leads there", str(path))
        os.rename(path.name, tomb, src_dir_fd=place, dst_dir_fd=place)
        try:
            if not is_same(path.with_name(tomb)):
                raise OSError(errno.EBUSY, "it has changed", str(path))
            is_folder = stat.S_ISDIR(os.stat(tomb, dir_fd=place, follow_symlinks=False).st_mode)
            for _ in contents(tomb, place) if is_folder else ():
                pass
        except BaseException:
            os.rename(tomb, path.name, src_dir_fd=place, dst_dir_fd=place)
            raise
        if is_folder:
            shutil.rmtree(f"/proc/self/fd/{place}/{tomb}")  # it follows no link, even one that appears meanwhile
        else:
            os.unlink(tomb, dir_fd=place)
    finally:
        os.close(place)
