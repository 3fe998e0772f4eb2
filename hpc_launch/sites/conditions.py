"""`when:` of a site profile: a closed list of conditions on the job and the software, combined with AND."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.job.launcher import LauncherName

_COUNT = r"^(([<>]=?|=|!=) ?\d+|\d+(-\d*)?)$"
_ONE_VERSION = r"([<>]=?|=|!=)? ?\d{1,9}(\.\d{1,9})*"
_VERSION = rf"^{_ONE_VERSION}(, ?{_ONE_VERSION})*$"
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
Count = Annotated[str, Meta(title="a count such as >1, 4 or 2-8", pattern=_COUNT)]
Version = Annotated[str, Meta(title="a version such as >=2.27 or >=2.4, <2.9", pattern=_VERSION)]


class When(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition. All given keys must hold. A condition on an undeclared version does not hold."""

    nodes: Annotated[Count | None, Meta(examples=[">1"])] = None
    """Number of nodes of the job."""
    gpus_per_node: Count | None = None
    """GPUs of the job on each node."""
    processes_per_node: Count | None = None
    """Processes per node."""
    queues: list[str] | None = None
    """The job's queue is one of these."""
    node_classes: list[str] | None = None
    """The node class is one of these."""
    arch: Literal["x86_64", "aarch64"] | None = None
    """CPU architecture of the nodes."""
    vendor: Literal["nvidia", "amd", "intel"] | None = None
    """GPU vendor."""
    launchers: list[LauncherName] | None = None
    """The launcher is one of these."""
    container: bool | None = None
    """Whether the training runs in an image."""
    runtimes: list[str] | None = None
    """The container runtime is one of these."""
    versions: Annotated[dict[str, Version], Meta(examples=[{"nccl": ">=2.27"}])] = {}
    """Software versions, as declared by the profile's `versions:`, the stack or the job's `environment.versions`.
    `slurm` is `scheduler.version`, `torch` is PyTorch."""


class ConditionFacts(Struct, frozen=True):
    """Properties of the job that conditions are evaluated against."""

    nodes: int
    gpus_per_node: int
    processes_per_node: int
    queue: str
    node_class: str
    arch: str | None
    vendor: str | None
    launcher: str
    runtime: str | None
    """None without an image."""
    versions: Mapping[str, str] = {}


def holds(when: When | None, facts: ConditionFacts) -> bool:
    """Whether a condition holds. A missing condition always does."""
    if when is None:
        return True
    counts = ("nodes", "gpus_per_node", "processes_per_node")
    equal = ((when.arch, facts.arch), (when.vendor, facts.vendor), (when.container, facts.runtime is not None))
    members = (
        (when.queues, facts.queue),
        (when.node_classes, facts.node_class),
        (when.launchers, facts.launcher),
        (when.runtimes, facts.runtime),
    )
    return (
        all(count_holds(getattr(when, key), getattr(facts, key)) for key in counts)
        and all(required is None or required == value for required, value in equal)
        and all(required is None or value in required for required, value in members)
        and all(version_holds(required, facts.versions.get(name)) for name, required in when.versions.items())
    )


def count_holds(required: str | None, value: int) -> bool:
    """Whether `value` matches `>1`, `4`, `2-8` or `92-`. None matches everything."""
    if required is None:
        return True
    match = re.fullmatch(r"([<>]=?|=|!=)? ?(\d+)(-?)(\d*)", required)
    if match is None:
        return False
    sign, first, dash, last = match.groups()
    if dash:
        return int(first) <= value and (not last or value <= int(last))
    return _COMPARE[sign or "="](value, int(first))


def version_holds(required: str, value: str | None) -> bool:
    """Whether `value` matches `>=2.4, <2.9`. An unknown version never does. `=2.4` also matches 2.4.1."""
    actual = numbers(value) if value is not None else ()
    if not actual:
        return False
    for comparison in required.split(","):
        match = re.fullmatch(r"([<>]=?|=|!=)? ?([\d.]+)", comparison.strip())
        if match is None:
            return False
        sign, target = match[1] or "=", numbers(match[2])
        prefix = actual[: len(target)] if sign in ("=", "!=", "<=", ">") else actual
        prefix += (0,) * (len(target) - len(prefix))
        if not _COMPARE[sign](prefix, target):
            return False
    return True


def numbers(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: (2, 27, 5) for `2.27.5-1+cuda12.4`."""
    match = re.match(r"[vV]?(\d{1,9}(?:\.\d{1,9})*)", version)
    return tuple(map(int, match[1].split("."))) if match else ()
