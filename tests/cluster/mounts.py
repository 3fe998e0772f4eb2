"""Private views of the file system, for the cluster as a whole and for each node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.cluster import config, pivot
from tests.cluster.covers import cover, open_to_users
from tests.cluster.settings import Layout, Settings
from tests.cluster.syscalls import bind, make_mounts_private, mount


def needed_paths(layout: Layout, settings: Settings) -> list[Path]:
    """What every user, on every node, has to be able to read; links as such and followed."""
    paths = [layout.root, *(Path(path) for path in settings.needs)]
    return [*paths, *(Path(os.path.realpath(path)) for path in paths)]


def cluster_view(layout: Layout, settings: Settings) -> None:
    """Give this mount namespace the view of the login node. Nothing shows outside."""
    make_mounts_private()
    needs = needed_paths(layout, settings)
    if settings.root:
        pivot.enter(Path(settings.root), layout, [*needs, *([Path(config.CGROUPS)] if settings.cgroups else [])])
    else:
        mount("proc", "/proc", "proc")
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
    Path("/run/mariadbd").symlink_to("mysqld")  # newer clients of MariaDB look there
    _own_network_folder(settings)
    mount("tmpfs", str(layout.small), "tmpfs", options="mode=1777,size=8m")


def node_view(layout: Layout, settings: Settings) -> None:
    """Give a node its own ``/tmp``, ``/dev/shm``, ``/proc`` and ``/sys``, as real hosts have."""
    make_mounts_private()
    mount("proc", "/proc", "proc")
    _own_temporary_folders(needed_paths(layout, settings))
    _own_network_folder(settings)


def _own_temporary_folders(needs: list[Path]) -> None:
    for name in ("/tmp", "/var/tmp", "/dev/shm"):
        folder = Path(name)
        # Where the machine links one of them elsewhere, that place is shared or done already.
        if folder.is_dir() and not folder.is_symlink():
            cover(folder, needs, mode=0o1777)


def _own_network_folder(settings: Settings) -> None:
    # /sys/class/net shows the network namespace in which /sys was mounted. The new /sys also
    # hides the machine's cgroups: no daemon of ours may write there, unless it was asked for.
    handle = os.open(config.CGROUPS, os.O_PATH) if settings.cgroups else None
    mount("sysfs", "/sys", "sysfs")
    if handle is not None:
        bind(f"/proc/self/fd/{handle}", config.CGROUPS)
        os.close(handle)
    elif Path(config.CGROUPS).is_dir():
        mount("tmpfs", config.CGROUPS, "tmpfs", options="mode=755")
