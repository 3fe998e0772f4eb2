"""Moving the private mount namespace of a cluster into another root file system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.covers import Kept, outermost
from tests.cluster.settings import Layout
from tests.cluster.syscalls import bind, detach, mount

OLD = Path("/old-root")
FUSE = Path("/dev/fuse")


def enter(root: Path, layout: Layout, needs: Iterable[Path]) -> None:
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
