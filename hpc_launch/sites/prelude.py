"""`prelude:` and `env:` of a site profile: typed steps before the training, and variables with a scope."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.job.type_hints import Scalar, VariableName
from hpc_launch.sites.conditions import When
from hpc_launch.sites.provenance import EntrySource

ACTIONS = (
    "modules",
    "module_use",
    "module_load",
    "module_unload",
    "source",
    "set",
    "unset",
    "prepend",
    "mkdir",
    "copy",
    "ulimit",
    "raw",
)
"""Actions of a step. Each step has exactly one."""

ACTIONS_BY_PLACE = {
    "nodes": frozenset({"mkdir", "copy"}),
    "container": frozenset({"source", "set", "unset", "prepend", "mkdir", "raw"}),
}
"""Actions that can run outside the job's shell."""


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
