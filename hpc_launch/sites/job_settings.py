"""What a site sets for jobs: `prelude`, `env`, `sbatch`, `srun`, `rules`, `launchers`, `stacks`, `options`; and
`when:`, a closed list of conditions on the job and the software, combined with AND."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.job.container import Environment
from hpc_launch.job.type_hints import LauncherName, Scalar, VariableName, short_form
from hpc_launch.sites.provenance import EntrySource

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
    actual = version_numbers(value) if value is not None else ()
    if not actual:
        return False
    for comparison in required.split(","):
        match = re.fullmatch(r"([<>]=?|=|!=)? ?([\d.]+)", comparison.strip())
        if match is None:
            return False
        sign, target = match[1] or "=", version_numbers(match[2])
        prefix = actual[: len(target)] if sign in ("=", "!=", "<=", ">") else actual
        prefix += (0,) * (len(target) - len(prefix))
        if not _COMPARE[sign](prefix, target):
            return False
    return True


def version_numbers(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: (2, 27, 5) for `2.27.5-1+cuda12.4`."""
    match = re.match(r"[vV]?(\d{1,9}(?:\.\d{1,9})*)", version)
    return tuple(map(int, match[1].split("."))) if match else ()


class Copy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or folder to copy to the node."""

    source: str
    """File or folder to copy, on storage shared by all nodes."""
    to: str
    """Destination folder. Created if necessary."""


class PreludeStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step before the training starts. Exactly one key defines the action; the others define where, when and
    why."""

    modules: Literal["purge", "force-purge", "reset"] | None = None
    """`module purge`, `module --force purge` (including sticky modules) or `module reset`."""
    module_use: list[str] | None = None
    """Folders of module files, as for `module use`."""
    module_load: list[str] | None = None
    """Modules to load, in this order."""
    module_unload: list[str] | None = None
    """Modules to unload."""
    source: str | None = None
    """File to source in the shell."""
    set: dict[VariableName, Scalar] | None = None
    """Variables to set."""
    unset: list[VariableName] | None = None
    """Variables to unset."""
    prepend: dict[VariableName, str] | None = None
    """Values to prepend, with a colon, to path variables such as PATH."""
    mkdir: list[str] | None = None
    """Folders to create, including their parents."""
    copy: Copy | None = None
    """File or folder to copy to a node's local disk."""
    ulimit: Annotated[
        dict[Annotated[str, Meta(pattern="^(stack|locked-memory|open-files|processes|core)$")], str] | None,
        Meta(examples=[{"stack": "unlimited"}]),
    ] = None
    """Shell limits: a number as for `ulimit`, or `unlimited`."""
    raw: str | None = None
    """A shell line. Only allowed in a user's own file, or in a trusted one. The script shows its origin."""
    where: Literal["job", "nodes", "container"] = "job"
    """In the `job`'s shell on the first node; once on each of the `nodes`, before the launcher (`mkdir`, `copy`);
    or inside the `container`, before the training."""
    when: When | None = None
    """Apply only if this condition holds."""
    why: str = ""
    """Reason, shown in the script."""
    fact: EntrySource = None


ACTIONS = tuple(name for name in PreludeStep.__struct_fields__ if name not in ("where", "when", "why", "fact"))
"""Actions of a step. Each step has exactly one."""
ACTIONS_BY_PLACE = {
    "nodes": frozenset({"mkdir", "copy"}),
    "container": frozenset({"source", "set", "unset", "prepend", "mkdir", "raw"}),
}
"""Actions that can run outside the job's shell."""


class Setting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Variables of the training. Within a scope, later settings override earlier ones. The job's `env` overrides them
    all."""

    set: dict[VariableName, Scalar] = {}
    """Variables to set."""
    unset: list[VariableName] = []
    """Variables to unset."""
    prepend: dict[VariableName, str] = {}
    """Values to prepend, with a colon, to path variables such as PATH."""
    drop: list[str] = []
    """Variables of lower layers to ignore."""
    scope: Literal["job", "node", "rank", "container"] = "job"
    """In the `job`'s shell, which passes them to all nodes; on each `node` before the launcher; in each `rank`,
    where `${shell.LOCAL_RANK}` is known; or only inside the `container`."""
    when: When | None = None
    """Apply only if this condition holds."""
    why: str = ""
    """Reason, shown in the script."""
    fact: EntrySource = None


OptionName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]*$")]


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to the options of a command. Options are given by long name, without dashes."""

    add: Annotated[dict[OptionName, Scalar], Meta(examples=[{"network": "disable_rdzv_get"}])] = {}
    """Options to add to every job. true adds a flag without a value."""
    drop: list[OptionName] = []
    """Options of hpc-launch to omit."""
    rename: dict[OptionName, OptionName] = {}
    """Options with another name on this site."""
    require: dict[OptionName, str] = {}
    """Options that every job must have, each with the reason."""
    forbid: Annotated[dict[OptionName, str], Meta(examples=[{"mem": "nodes are whole"}])] = {}
    """Options that no job may have, each with the reason."""


class Linked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a job, by name. `*` matches any value."""

    env: dict[VariableName, str] = {}
    """Variables."""
    sbatch: dict[OptionName, str] = {}
    """sbatch options, by long name. A flag has the value `true`."""


class LinkedRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that require or exclude each other."""

    given: Linked = Linked()
    """If the job has all of these settings …"""
    when: When | None = None
    """… and this condition holds, …"""
    needs: Linked = Linked()
    """… then it must have all of these settings …"""
    excludes: Linked = Linked()
    """… and none of these."""
    add: bool = False
    """Add missing settings of `needs`. Otherwise the job is rejected."""
    severity: Literal["error", "warning"] = "error"
    """Whether a violation rejects the job."""
    why: str = ""
    """Reason, shown in the finding."""
    fact: EntrySource = None


class LauncherAdvice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The site's advice on a launcher, and options for it."""

    use: Literal["recommended", "allowed", "discouraged", "forbidden"] = "allowed"
    """`discouraged` causes a warning, `forbidden` rejects the job."""
    why: str = ""
    """Reason."""
    srun_options: list[str] = []
    """Extra srun options for this launcher."""
    sbatch: dict[str, Scalar] = {}
    """Extra sbatch options for this launcher."""

    __short_forms__ = short_form("The advice alone.", {str: "use"})


class Stack(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A software stack, such as the modules of one year or stage. It is the lowest layer of the job, so a job may
    replace or extend its modules."""

    about: str = ""
    """Contents of the stack."""
    environment: Environment = Environment()
    """As in a job file."""
    env: dict[str, Scalar] = {}
    """As in a job file."""
    versions: Annotated[dict[str, str], Meta(examples=[{"nccl": "2.22.3", "cuda": "12.6"}])] = {}
    """Software versions in the stack, for conditions."""
    in_container: bool = False
    """Also apply the stack to jobs in an image, which usually contain their own software."""
    fact: EntrySource = None


class SiteOption(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that a job enables with `options: [NAME]`: a local disk, a node mode, a workaround for a hang."""

    about: str = ""
    """Purpose of the option."""
    constraint: str | None = None
    """Value for `--constraint`. All constraints of a job are combined with AND."""
    sbatch: dict[str, Scalar] = {}
    """sbatch options, by long name."""
    srun_options: list[str] = []
    """Options for srun, one list item each."""
    env: list[Setting] = []
    """Variables."""
    prelude: list[PreludeStep] = []
    """Steps before the training."""
    fact: EntrySource = None
