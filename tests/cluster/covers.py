"""Covering folders, in a private mount namespace, and showing what is needed of them again.

The ordinary user has to be able to run this Python and this checkout. Both may lie below a
folder that only root may enter (a pyenv in ``/root``, a checkout in a 0700 folder of a CI
runner). The rights of the machine are not ours to change; instead such a folder is covered,
in the cluster's own mount namespace, by an empty one that everybody may enter, and only the
paths that are needed are shown again at their old places.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.syscalls import bind, mount

ENTER = stat.S_IXOTH
READ = stat.S_IXOTH | stat.S_IROTH


def blocking_folder(path: Path) -> Path | None:
    """The topmost folder on the way to `path` that 'others' may not pass, or None."""
    for folder in [*reversed(path.parents), path]:
        wanted = READ if folder == path else ENTER
        if folder.is_dir() and folder.stat().st_mode & wanted != wanted:
            return folder
    return None


def cover(folder: Path, keep: Iterable[Path], mode: int = 0o755) -> None:
    """Lay an empty tmpfs over `folder`, and show the paths to `keep` below it again."""
    inside = [path for path in keep if path != folder and path.is_relative_to(folder)]
    kept = [Kept(path) for path in outermost(inside) if path.exists()]
    mount("tmpfs", str(folder), "tmpfs", options=f"mode={mode:o}")
    for item in kept:
        item.show_again()


class Kept:
    """A path that is about to be covered: a link is made again, all else bound back."""

    def __init__(self, path: Path) -> None:
        """Take hold of a path while it can still be seen."""
        self.path = path
        self.link = str(path.readlink()) if path.is_symlink() else None
        self.is_folder = path.is_dir()
        # A handle opened before the cover still leads to what the cover hides.
        self.handle = os.open(path, os.O_PATH)

    def show_again(self) -> None:
        """Put it where it was, in the file system that has come in between."""
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self.path.is_symlink():
            self.path.unlink()  # another root has one of its own there
        if self.link is not None:
            self.path.symlink_to(self.link)
        else:
            self.path.mkdir(mode=0o755, exist_ok=True) if self.is_folder else self.path.touch()
            bind(f"/proc/self/fd/{self.handle}", str(self.path))
        os.close(self.handle)


def outermost(paths: Iterable[Path]) -> list[Path]:
    """The paths that do not lie below another one of them."""
    chosen: list[Path] = []
    for path in sorted(set(paths), key=lambda item: len(item.parts)):
        if not any(path.is_relative_to(other) for other in chosen):
            chosen.append(path)
    return chosen


def open_to_users(needs: Iterable[Path]) -> None:
    """Cover what keeps ordinary users from the paths they need, in this namespace only."""
    wanted = list(needs)
    for path in wanted:
        while (wall := blocking_folder(path)) is not None:
            # Of a needed folder that is itself closed, the content is needed.
            inside = list(wall.iterdir()) if wall in wanted else []
            cover(wall, [*(item for item in wanted if item != wall), *inside])
