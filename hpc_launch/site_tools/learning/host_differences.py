"""Where the hosts of a site without a scheduler differ. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from hpc_launch.site_tools.learning.hardware import MEMORY_TOLERANCE
from hpc_launch.site_tools.learning.host_facts import HostFacts, PythonVersions

NONE = "none"


class HostDifference(Struct, frozen=True):
    """A fact that is not the same on all hosts: the hosts of each value, most frequent value first."""

    fact: str
    values: dict[str, list[str]]


def differences(hosts: Mapping[str, HostFacts], folders: Mapping[str, tuple[str, ...]]) -> list[HostDifference]:
    """The facts that differ. `folders` are the hosts that share each folder."""
    result = []
    for fact, value_of in FACTS.items():
        values: dict[str, list[str]] = {}
        for name, facts in hosts.items():
            values.setdefault(value_of(facts), []).append(name)
        if len(values) > 1 and not (fact == "memory" and _nearly_equal(hosts)):
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
    return ", ".join(dict.fromkeys(gpu.model for gpu in facts.gpus)) or NONE


def drivers(facts: HostFacts) -> str:
    """The versions of its GPU driver."""
    return ", ".join(dict.fromkeys(gpu.driver for gpu in facts.gpus)) or NONE


def _nearly_equal(hosts: Mapping[str, HostFacts]) -> bool:
    sizes = [facts.memory or 0 for facts in hosts.values()]
    return min(sizes) >= MEMORY_TOLERANCE * max(sizes)


def _size(mebibytes: int | None) -> str:
    return f"{mebibytes / 1024:.0f} GiB" if mebibytes else "unknown"


def _torch(python: PythonVersions | None) -> str:
    return (python.torch if python is not None else "") or NONE


def _version(python: PythonVersions | None) -> str:
    return python.version if python is not None else NONE


FACTS: Mapping[str, Callable[[HostFacts], str]] = {
    "GPUs": lambda facts: str(len(facts.gpus)),
    "GPU model": models,
    "GPU memory": lambda facts: ", ".join(dict.fromkeys(_size(gpu.memory) for gpu in facts.gpus)) or NONE,
    "GPU driver": drivers,
    "CPUs": lambda facts: str(facts.cpus),
    "memory": lambda facts: _size(facts.memory),
    "architecture": lambda facts: facts.arch or "unknown",
    "python3": lambda facts: _version(facts.python),
    "PyTorch of python3": lambda facts: _torch(facts.python),
    "python of hpc-launch": lambda facts: _version(facts.launcher_python),
    "PyTorch of that python": lambda facts: _torch(facts.launcher_python),
    "pdsh": lambda facts: facts.pdsh or NONE,
    "container runtimes": lambda facts: ", ".join(facts.runtimes) or NONE,
    "home": lambda facts: facts.folders[0] if facts.folders else "unknown",
}
