"""What hosts, the nodes of a probe job and the login node say about themselves.

Answers of hosts are checked, because a host may print anything.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from hpc_launch.base.json_records import json_as_type
from hpc_launch.base.run_program import run_program
from hpc_launch.runtimes.container_runtimes import BY_PROGRAM
from hpc_launch.site_tools.draft_queues import MEMORY_TOLERANCE
from hpc_launch.sites.network import INTERFACE

T = TypeVar("T")
Text = Annotated[str, Meta(max_length=100, pattern=r"^[ -~]*\Z")]
Count = Annotated[int, Meta(ge=1, le=1 << 16)]
Mebibytes = Annotated[int, Meta(ge=0, le=1 << 40)]


class HostGpu(Struct, frozen=True):
    """A GPU of a host. Memory in MiB, 0 if unknown."""

    vendor: Annotated[str, Meta(pattern=r"^(nvidia|amd)\Z")]
    model: Text
    memory: Mebibytes
    driver: Text


class HostInterface(Struct, frozen=True):
    """A network interface with its IPv4 address. Speed in Mb/s, 0 if unknown."""

    name: Annotated[str, Meta(max_length=15, pattern=INTERFACE.replace("$", r"\Z"))]
    address: Text
    prefix: Annotated[int, Meta(ge=0, le=32)]
    speed: Annotated[int, Meta(ge=0, le=1 << 40)] = 0

    @property
    def network(self) -> str:
        """Its network, such as `10.0.0.0/24`. Raises ValueError for an invalid address."""
        return str(ipaddress.IPv4Interface(f"{self.address}/{self.prefix}").network)


class PythonVersions(Struct, frozen=True):
    """An interpreter and its PyTorch; '' if it has none."""

    version: Text
    torch: Text = ""


class HostFacts(Struct, frozen=True, kw_only=True):
    """What a host has (agent/describe_host.py); None for what could not be found out."""

    cpus: Count
    machine: Text = ""
    """What two names of one machine have in common."""
    threads_per_core: Annotated[int, Meta(ge=1, le=16)] = 1
    memory: Mebibytes | None = None
    arch: Text | None = None
    gpus: Annotated[tuple[HostGpu, ...], Meta(max_length=64)] = ()
    interfaces: Annotated[tuple[HostInterface, ...], Meta(max_length=64)] = ()
    fabric: Literal["slingshot", "infiniband", "omni-path", "roce", "efa", "ethernet"] | None = None
    """Family of the fast network, by the adapters."""
    python: PythonVersions | None = None
    launcher_python: PythonVersions | None = None
    """The interpreter that runs hpc-launch here, at the same path there."""
    pdsh: Text | None = None
    """How pdsh connects by default."""
    runtimes: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    folders: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()
    """Folders that it may share with others; the first one is the user's home."""
    faults: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()


def read_facts(text: str) -> HostFacts:
    """The facts in an answer. Raises ValueError if it is not what the program prints."""
    try:
        facts = json_as_type(text, HostFacts)
    except msgspec.MsgspecError as error:
        raise ValueError(f"unexpected answer: {error}") from None
    for interface in facts.interfaces:
        ipaddress.IPv4Interface(f"{interface.address}/{interface.prefix}")
    return facts


def common_network(hosts: dict[str, HostFacts]) -> dict[str, HostInterface]:
    """The interface of each host in the fastest network that all of them are in; empty if there is none.

    A network in which two hosts have the same address, such as Docker's, is another one on each host.
    """
    networks: dict[str, dict[str, HostInterface]] = {}
    for name, facts in hosts.items():
        for interface in facts.interfaces:
            if not ipaddress.IPv4Address(interface.address).is_link_local:
                networks.setdefault(interface.network, {}).setdefault(name, interface)
    complete = [
        members
        for members in networks.values()
        if len(members) == len(hosts) == len({interface.address for interface in members.values()})
    ]
    return max(complete, key=lambda members: min(one.speed for one in members.values()), default={})


class InternetMeasurement(Struct, frozen=True, kw_only=True):
    """Access to the internet from the node."""

    compute: str | None = None
    proxy: str | None = None
    needs_password: bool = False
    """The proxy's address has a password, and is therefore not recorded."""


class CollectiveMeasurement(Struct, frozen=True, kw_only=True):
    """What the nodes measured together."""

    connected: bool = False
    interface: str | None = None
    """The interface between them."""
    by: str | None = None
    """How the first node was reached: `name` or `address`."""
    folders: dict[str, bool] | None = None
    """Whether each folder is visible."""
    all_reduce: float | None = None
    """Bus bandwidth that PyTorch reached, in GB/s."""


class SmokeRecord(HostFacts, frozen=True, kw_only=True):
    """What a node of a probe job has and measured (agent/smoke.py)."""

    allocated_gpus: str | None = None
    internet: InternetMeasurement | None = None
    together: CollectiveMeasurement = CollectiveMeasurement()


class HostDifference(Struct, frozen=True):
    """A fact that is not the same on all hosts: the hosts of each value, most frequent value first."""

    fact: str
    values: dict[str, list[str]]


def differences(hosts: Mapping[str, HostFacts], folders: Mapping[str, tuple[str, ...]]) -> list[HostDifference]:
    """The facts that differ. `folders` are the hosts that share each folder."""
    result = []
    sizes = [facts.memory or 0 for facts in hosts.values()]
    alike = min(sizes) >= MEMORY_TOLERANCE * max(sizes)
    for fact, value_of in FACTS.items():
        values: dict[str, list[str]] = {}
        for name, facts in hosts.items():
            values.setdefault(value_of(facts), []).append(name)
        if len(values) > 1 and not (fact == "memory" and alike):
            by_frequency = sorted(values.items(), key=lambda item: -len(item[1]))
            result.append(HostDifference(fact, dict(by_frequency)))
    for path, sharing in folders.items():
        others = [name for name in hosts if name not in sharing]
        if others and (sharing[1:] or path == home(hosts)):
            shared = {"shared": list(sharing)} if sharing[1:] else {}
            result.append(HostDifference(f"folder {path}", {**shared, "not shared": others}))
    return result


def home(hosts: Mapping[str, HostFacts]) -> str:
    """The user's home on the first host."""
    return next((facts.folders[0] for facts in hosts.values() if facts.folders), "")


def models(facts: HostFacts) -> str:
    """The models of its GPUs."""
    return _listed(gpu.model for gpu in facts.gpus)


def drivers(facts: HostFacts) -> str:
    """The versions of its GPU driver."""
    return _listed(gpu.driver for gpu in facts.gpus)


def common(values: Iterable[T | None]) -> T | None:
    """The value that all have; None if they differ, or if it is unknown for some."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, values))) or "none"


def _size(mebibytes: int | None) -> str:
    return f"{mebibytes / 1024:.0f} GiB" if mebibytes else "unknown"


def _python(python: PythonVersions | None, field: str) -> str:
    return getattr(python, field, "") or "none"


FACTS: Mapping[str, Callable[[HostFacts], str]] = {
    "GPUs": lambda facts: str(len(facts.gpus)),
    "GPU model": models,
    "GPU memory": lambda facts: _listed(_size(gpu.memory) for gpu in facts.gpus),
    "GPU driver": drivers,
    "CPUs": lambda facts: str(facts.cpus),
    "memory": lambda facts: _size(facts.memory),
    "architecture": lambda facts: facts.arch or "unknown",
    "python3": lambda facts: _python(facts.python, "version"),
    "PyTorch of python3": lambda facts: _python(facts.python, "torch"),
    "python of hpc-launch": lambda facts: _python(facts.launcher_python, "version"),
    "PyTorch of that python": lambda facts: _python(facts.launcher_python, "torch"),
    "pdsh": lambda facts: facts.pdsh or "none",
    "container runtimes": lambda facts: _listed(facts.runtimes),
    "home": lambda facts: facts.folders[0] if facts.folders else "unknown",
}


MODULE_TIMEOUT_S = 60.0
"""`module avail` may read every module file of a site from a shared file system."""

FOLDERS = {
    "scratch": ("SCRATCH", "PSCRATCH", "CINECA_SCRATCH"),
    "work": ("WORK",),
    "project": ("PROJECT", "PROJECTDIR"),
}
"""Variables that name a site's file systems, most common first."""

_RELEVANT = re.compile(
    r"(^|[/_-])(py)?torch|(^|/)(cuda|cudatoolkit|nvhpc|rocm|nccl|rccl|aws-ofi-nccl)(/|$|-)", re.IGNORECASE
)


@dataclass(frozen=True)
class LoginNode:
    """What a login node says besides Slurm. `modules` are those relevant for a training."""

    module_system: str
    """`lmod`, `environment-modules` or `none`."""
    modules: tuple[str, ...]
    runtimes: tuple[str, ...]
    folders: Mapping[str, str]
    """Variable that names each folder."""


def inspect_login_node(environment: Mapping[str, str]) -> LoginNode:
    """Inspect this host. Missing things are not errors."""
    system, command = _module_command(environment)
    folders = {
        name: next((variable for variable in variables if _is_folder(environment.get(variable, ""))), None)
        for name, variables in FOLDERS.items()
    }
    return LoginNode(
        module_system=system,
        modules=_modules(command, environment) if command else (),
        runtimes=tuple(name for command, name in BY_PROGRAM.items() if shutil.which(command)),
        folders={name: variable for name, variable in folders.items() if variable},
    )


def _is_folder(path: str) -> bool:
    return os.path.isabs(path) and os.path.isdir(path)


def _module_command(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Program behind the shell function `module`, which writes module names to stderr."""
    lmod = environment.get("LMOD_CMD")
    if lmod and os.access(lmod, os.X_OK):
        return "lmod", [lmod, "bash", "--terse", "avail"]
    home = environment.get("MODULESHOME", "")
    for candidate in (
        environment.get("MODULES_CMD", ""),
        os.path.join(home, "libexec", "modulecmd.tcl"),
        os.path.join(home, "bin", "modulecmd"),
    ):
        if os.path.isabs(candidate) and os.access(candidate, os.X_OK):
            return "environment-modules", [candidate, "bash", "avail", "--terse"]
    return "none", []


def _modules(command: list[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    try:
        done = run_program(command, MODULE_TIMEOUT_S, environment=environment)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    # Lmod also prints names without a version, with a trailing slash; both mark defaults in parentheses.
    lines = (re.sub(r"\([^)]*\)$", "", line.strip()) for line in f"{done.stderr}\n{done.stdout}".splitlines())
    names = [line for line in lines if re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", line) and _RELEVANT.search(line)]
    return tuple(dict.fromkeys(names))
