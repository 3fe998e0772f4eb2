"""Process 1 of a compute node: its death is the death of the node.

Run by the manager as ``python -m tests.cluster.node FOLDER NAME`` in new namespaces.
"""

from __future__ import annotations

import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from tests.cluster import mounts, network
from tests.cluster.services import Keeper
from tests.cluster.settings import Layout, read_settings
from tests.cluster.syscalls import outlive


def main() -> None:
    """Be a node until killed."""
    layout, name = Layout(Path(sys.argv[1])), sys.argv[2]
    settings = read_settings(layout)
    socket.sethostname(name)
    mounts.node_view(layout, settings)
    # The manager lays the cable from outside, and says so with a line.
    sys.stdin.readline()
    network.switch_on(name, settings)
    spool = layout.spool / name
    # What a dead node left there would keep ghosts of its steps alive.
    shutil.rmtree(spool, ignore_errors=True)
    spool.mkdir(mode=0o755)
    keeper = Keeper(layout.logs)
    # -b: registers at once as newly booted, so that the controller ends what ran here before.
    keeper.start(f"slurmd.{name}", ["slurmd", "-D", "-b", "-N", name])
    outlive(signal.SIGTERM)
    while True:
        keeper.bury()
        time.sleep(0.2)


if __name__ == "__main__":
    main()
