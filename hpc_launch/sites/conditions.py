"""`when:` of a site profile: a closed list of questions about the job and the software; all of them must hold."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

_COUNT = r"^(([<>]=?|=|!=) ?\d+|\d+(-\d*)?)$"
_ONE_VERSION = r"([<>]=?|=|!=)? ?\d+(\.\d+)*"
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
    """A condition. All keys that are there must hold; a version that nobody declared makes it not hold."""

    nodes: Annotated[Count | None, Meta(description="Nodes of the job.", examples=[">1"])] = None
    gpus_per_node: Annotated[Count | None, Meta(description="GPUs that the job has on each node.")] = None
    processes_per_node: Annotated[Count | None, Meta(description="Processes on each node.")] = None
    queues: Annotated[list[str] | None, Meta(description="The job's queue is one of these.")] = None
    node_classes: Annotated[list[str] | None, Meta(description="The nodes' class is one of these.")] = None
    arch: Annotated[Literal["x86_64", "aarch64"] | None, Meta(description="The nodes' architecture.")] = None
    vendor: Annotated[Literal["nvidia", "amd", "intel"] | None, Meta(description="Whose GPUs they are.")] = None
    launchers: Annotated[
        list[Literal["torchrun", "deepspeed", "srun", "none"]] | None, Meta(description="The launcher is one of these.")
    ] = None
    container: Annotated[bool | None, Meta(description="Whether the training runs in an image.")] = None
    runtimes: Annotated[list[str] | None, Meta(description="What runs the image is one of these.")] = None
    versions: Annotated[
        dict[str, Version],
        Meta(
            description="Versions of software, as the profile's `versions:`, the stack or the job's "
            "`environment.versions` declare them; `slurm` is `scheduler.version`, `torch` PyTorch.",
            examples=[{"nccl": ">=2.27"}],
        ),
    ] = {}


class ConditionFacts(Struct, frozen=True):
    """What a condition is asked about."""

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
    """Whether all of a condition holds; no condition always does."""
    if when is None:
        return True
    counts = ("nodes", "gpus_per_node", "processes_per_node")
    if not all(count_holds(getattr(when, key), getattr(facts, key)) for key in counts):
        return False
    chosen = (
        (when.queues, facts.queue),
        (when.node_classes, facts.node_class),
        (when.launchers, facts.launcher),
        (when.runtimes, facts.runtime),
    )
    if any(wanted is not None and value not in wanted for wanted, value in chosen):
        return False
    if any(
        wanted is not None and wanted != value
        for wanted, value in ((when.arch, facts.arch), (when.vendor, facts.vendor))
    ):
        return False
    if when.container is not None and when.container != (facts.runtime is not None):
        return False
    return all(version_holds(wanted, facts.versions.get(name)) for name, wanted in when.versions.items())


def count_holds(wanted: str | None, value: int) -> bool:
    """`>1`, `4`, `2-8` or `92-` about a number; None asks nothing."""
    if wanted is None:
        return True
    match = re.fullmatch(r"([<>]=?|=|!=)? ?(\d+)(-?)(\d*)", wanted)
    if match is None:
        return False
    sign, first, dash, last = match.groups()
    if dash:
        return int(first) <= value and (not last or value <= int(last))
    return _COMPARE[sign or "="](value, int(first))


def version_holds(wanted: str, value: str | None) -> bool:
    """`>=2.4, <2.9` about a version; one that is not known never holds. `=2.4` takes 2.4.1 too."""
    have = numbers(value) if value is not None else ()
    if not have:
        return False
    for part in wanted.split(","):
        match = re.fullmatch(r"([<>]=?|=|!=)? ?([\d.]+)", part.strip())
        if match is None:
            return False
        sign, asked = match[1] or "=", numbers(match[2])
        mine = have[: len(asked)] if sign in ("=", "!=", "<=", ">") else have
        mine += (0,) * (len(asked) - len(mine))
        if not _COMPARE[sign](mine, asked):
            return False
    return True


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: (2, 27, 5) for `2.27.5-1+cuda12.4`."""
    match = re.match(r"[vV]?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, match[1].split("."))) if match else ()
