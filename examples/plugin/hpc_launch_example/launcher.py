"""`launcher: spawn`: bash starts the processes of a node, for a training that needs neither torchrun nor srun."""

from pathlib import Path

from hpc_launch.plugins.api import API, LauncherDescriptor, options_only

DESCRIPTOR = LauncherDescriptor(
    name="spawn",
    api=API,
    tasks="node",
    plan=options_only,
    template=Path(__file__).with_name("spawn.sh.j2").read_text("utf-8"),
)
