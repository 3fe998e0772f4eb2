"""Private views of the file system, for the cluster as a whole and for each node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.cluster import config
from tests.cluster.covers import Kept, cover, open_to_users, outermost
from tests.cluster.settings import Layout, Settings
from tests.cluster.syscalls import bind, detach, make_mounts_private, mount

OLD = Path("/old-root")
FUSE = Path("/dev/fuse")


def needed_paths(layout: Layout, settings: Settings) -> list[Path]:
    """What every user, on every node, has to be able to read; links as such and followed."""
    paths = [layout.root, *(Path(path) for path in settings.needs)]
    return [*paths, *(Path(os.path.realpath(path)) for path in paths)]


def cluster_view(layout: Layout, settings: Settings) -> None:
    """Give this mount namespace the view of the login node. Nothing shows outside."""
    make_mounts_private()
    needs = needed_paths(layout, settings)
    if settings.root:
        enter_root(Path(settings.root), layout, [*needs, *([Path(config.CGROUPS)] if settings.cgroups else [])])
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
    mount("tmpfs", str(layout.small), "tmpfs", options="mode=1777,size=32m")


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


def enter_root(root: Path, layout: Layout, needs: Iterable[Path]) -> None:
    """Make `root` the ``/`` of this mount namespace, with `needs` and ``/dev`` at their old places.

    What is written there goes to a tmpfs that vanishes with the namespace: `root` stays as it is
    and may serve many clusters at once.
    """
    kept = [Kept(path) for path in outermost([*needs, Path("/dev")]) if path.exists()]
    folder_before = Path.cwd()
    stage = layout.run / "root"
    for folder in (stage, stage / "lower", stage / "upper", stage / "merged"):
        folder.mkdir()
    bind(str(root), str(stage / "lower"))
    mount("tmpfs", str(stage / "upper"), "tmpfs", options="mode=755")
    for name in ("changed", "work"):
        (stage / "upper" / name).mkdir(mode=0o755)
    # The options of an overlay cannot hold every path; relative ones hold no more than these words.
    os.chdir(stage)
    mount("overlay", "merged", "overlay", options="lowerdir=lower,upperdir=upper/changed,workdir=upper/work")
    for name in ("lower", "upper"):
        detach(name)  # the overlay holds on to both; nobody has to see them
    os.chdir("merged")
    Path(OLD.name).mkdir()
    # The program and not the call: it has no function in the C library, and a number for each machine.
    subprocess.run(["pivot_root", ".", OLD.name], check=True)
    os.chdir("/")
    mount("proc", "/proc", "proc")
    for item in kept:
        item.show_again()
    os.chdir(folder_before)  # by its name: the same files, seen through the new root
    detach(str(OLD))
    OLD.rmdir()
    if Path("/usr/local/lib").is_mount() or Path("/usr/local").is_mount():
        subprocess.run(["ldconfig"], check=True)  # a Python from there has its library there
    if layout.fuse.exists():
        bind(str(layout.fuse), str(FUSE))


def python_fault() -> str | None:
    """Why this Python does not run in the root that was entered, or None if it does."""
    trial = [sys.executable, "-S", "-E", "-c", "import ctypes, json, socket, subprocess"]
    try:
        done = subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
