"""Private views of the file system, for the cluster as a whole and for each node.

The ordinary user has to be able to run this Python and this checkout. Both may lie below a
folder that only root may enter (a pyenv in ``/root``, a checkout in a 0700 folder of a CI
runner). The rights of the machine are not ours to change; instead such a folder is covered,
in the cluster's own mount namespace, by an empty one that everybody may enter, and only the
paths that are needed are shown again at their old places.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.cluster import config
from tests.cluster.settings import Layout, Settings
from tests.cluster.syscalls import bind, make_mounts_private, mount

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
    kept = [_Kept(path) for path in _outermost(inside) if path.exists()]
    mount("tmpfs", str(folder), "tmpfs", options=f"mode={mode:o}")
    for item in kept:
        item.show_again()


class _Kept:
    """A path that is about to be covered: a link is made again, all else bound back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.link = str(path.readlink()) if path.is_symlink() else None
        self.is_folder = path.is_dir()
        # A handle opened before the cover still leads to what the cover hides.
        self.handle = os.open(path, os.O_PATH)

    def show_again(self) -> None:
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self.link is not None:
            self.path.symlink_to(self.link)
        else:
            self.path.mkdir(mode=0o755, exist_ok=True) if self.is_folder else self.path.touch()
            bind(f"/proc/self/fd/{self.handle}", str(self.path))
        os.close(self.handle)


def _outermost(paths: Iterable[Path]) -> list[Path]:
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


def needed_paths(layout: Layout, settings: Settings) -> list[Path]:
    """What every user, on every node, has to be able to read; links as such and followed."""
    paths = [layout.root, *(Path(path) for path in settings.needs)]
    return [*paths, *(Path(os.path.realpath(path)) for path in paths)]


def cluster_view(layout: Layout, settings: Settings) -> None:
    """Give this mount namespace the view of the login node. Nothing shows outside."""
    make_mounts_private()
    mount("proc", "/proc", "proc")
    needs = needed_paths(layout, settings)
    # The whole of /etc, not single files: a file bind is dropped when the file is replaced
    # outside (a rename over /etc/hosts does), and /etc/slurm need not exist outside.
    copy = layout.run / "etc"
    copy.mkdir()
    mount("tmpfs", str(copy), "tmpfs", options="mode=755")
    subprocess.run(["cp", "-a", "/etc/.", str(copy)], check=True)
    config.write_etc(copy, layout, settings)
    bind(str(copy), "/etc")
    cover(Path("/run"), needs)
    _own_temporary_folders(needs)
    open_to_users(needs)
    for folder in ("/run/munge", "/run/mysqld", "/run/slurm", "/run/sshd"):
        Path(folder).mkdir(mode=0o755, parents=True, exist_ok=True)
    _own_network_folder()


def node_view(layout: Layout, settings: Settings) -> None:
    """Give a node its own ``/tmp``, ``/dev/shm``, ``/proc`` and ``/sys``, as real hosts have."""
    make_mounts_private()
    mount("proc", "/proc", "proc")
    _own_temporary_folders(needed_paths(layout, settings))
    _own_network_folder()


def _own_temporary_folders(needs: list[Path]) -> None:
    for name in ("/tmp", "/var/tmp", "/dev/shm"):
        folder = Path(name)
        # Where the machine links one of them elsewhere, that place is shared or done already.
        if folder.is_dir() and not folder.is_symlink():
            cover(folder, needs, mode=0o1777)


def _own_network_folder() -> None:
    # /sys/class/net shows the network namespace in which /sys was mounted. The new /sys also
    # hides the machine's cgroups: no daemon of ours may write there.
    mount("sysfs", "/sys", "sysfs")
    if Path("/sys/fs/cgroup").is_dir():
        mount("tmpfs", "/sys/fs/cgroup", "tmpfs", options="mode=755")
