"""`mpirun …` of Open MPI and MPICH: its processes and variables."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.values import Word

_PROCESSES = frozenset({"np", "n", "c"})
_PER_NODE = frozenset({"npernode", "ppn", "N", "perhost"})
_PAIRS = frozenset({"genv", "env"})
_SETTINGS = frozenset({"mca", "gmca", "pmca"})
_VALUED = frozenset(
    "hostfile machinefile H host hosts f bind-to rank-by launcher bootstrap rmk prefix wdir iface output-filename "
    "genvlist envlist rsh".split()
)
_FLAGS = frozenset(
    "oversubscribe allow-run-as-root report-bindings tag-output genvall l prepend-rank display-map nooversubscribe "
    "bind-to-none bind-to-core display-allocation v verbose print-rank-map".split()
)


def mpirun(launch: OldLaunch, words: Sequence[Word]) -> Sequence[Word]:
    """The words of the command that mpirun starts. Its options go into the launch."""
    launch.by_srun, launch.launcher = True, "srun"
    launch.keys += ["launcher", "processes_per_node"]
    left = list(words)
    while left and left[0].text.startswith("-"):
        option = left.pop(0)
        name, equals, attached = option.text.lstrip("-").partition("=")
        taken = 2 if name in _PAIRS | _SETTINGS else 0 if equals or name in _FLAGS else 1
        values, left = ([option.after(len(option.text) - len(attached))] if equals else left[:taken]), left[taken:]
        number = values[0].number() if values else None
        if name in _PROCESSES:
            launch.tasks = number
        elif name in _PER_NODE:
            launch.tasks_per_node = number
        elif name == "map-by" and values:
            launch.tasks_per_node = _per_resource(values[0].text)
        elif name == "x" and values:
            key, given, _ = values[0].text.partition("=")
            if given:
                launch.env[key] = values[0].after(len(key) + 1).value
        elif name in _PAIRS and len(values) == 2:
            launch.env[values[0].text] = values[1].value
        elif name in _SETTINGS:
            launch.doubts.append((option.line, f"`--{name} {' '.join(value.text for value in values)}` of mpirun"))
        elif name not in _VALUED | _FLAGS:
            launch.doubts.append((option.line, f"`{option.text}` of mpirun"))
    return left


def _per_resource(text: str) -> int | None:
    """The number in `--map-by ppr:4:node`."""
    parts = text.split(":")
    return int(parts[1]) if parts[0] == "ppr" and len(parts) > 2 and parts[1].isdecimal() else None
