"""Outside the namespaces: ends the cluster with its owner, and takes its folder away.

Run as ``python -m tests.cluster.supervisor FOLDER OWNER``. It holds the one process on which
everything else hangs: that killed, the kernel kills all processes of the cluster, and their
mounts and network interfaces vanish with them.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.cluster.config import CGROUPS
from tests.cluster.settings import UNSHARE, Layout, python_module, read_settings
from tests.cluster.syscalls import children, die_with_parent, outlive, start_time


def start_manager(layout: Layout) -> tuple[subprocess.Popen[bytes], int]:
    """Start the manager in new namespaces; gives `unshare` and the manager's process id."""
    holder = subprocess.Popen(
        [*UNSHARE, *python_module("tests.cluster.manager"), str(layout.root)],
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - there are no threads here
    )
    while not (found := children(holder.pid)):
        if holder.poll() is not None:
            raise RuntimeError(f"unshare ended with {holder.returncode}")
        time.sleep(0.005)
    return holder, found[0]


def describe(layout: Layout, manager: int) -> None:
    """Leave what another process needs in order to attach, in one step."""
    text = json.dumps(
        {
            "folder": str(layout.root),
            "manager": manager,
            "manager_started": start_time(manager),
            "supervisor": os.getpid(),
            "supervisor_started": start_time(os.getpid()),
        }
    )
    draft = layout.descriptor.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(layout.descriptor)


def remove_cgroups(layout: Layout) -> None:
    """Take away the control groups that the cluster's Slurm made; they are empty, as all its processes are gone."""
    if not read_settings(layout).cgroups:
        return
    for top in Path(CGROUPS).glob("*/slurm*"):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):  # not empty, so somebody else's
                os.rmdir(folder)


def main() -> None:
    """Watch until the owner is gone or SIGTERM comes, then end everything."""
    layout, owner = Layout(Path(sys.argv[1])), int(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # A Ctrl-C at the terminal is for the owner; its end is what counts.
    outlive(signal.SIGINT, signal.SIGHUP)
    holder = None
    manager = 0
    try:
        watch = os.pidfd_open(owner)
        holder, manager = start_manager(layout)
        describe(layout, manager)
        # Readable once the owner has ended, however it did; its number cannot be taken over.
        select.select([watch], [], [])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if holder is not None:
            if holder.poll() is None and manager:
                # Process 1 of a pid namespace is only gone once all others of it are, and
                # `unshare` ends after it; killed first it would leave us nothing to wait for.
                os.kill(manager, signal.SIGKILL)
            else:
                holder.kill()
            holder.wait()
        remove_cgroups(layout)
        shutil.rmtree(layout.root, ignore_errors=True)


if __name__ == "__main__":
    main()
