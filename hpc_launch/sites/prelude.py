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

    source: Annotated[str, Meta(description="File or folder to copy, on storage shared by all nodes.")]
    to: Annotated[str, Meta(description="Destination folder. Created if necessary.")]


class PreludeStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step before the training starts. Exactly one key defines the action; the others define where, when and
    why."""

    modules: Annotated[
        Literal["purge", "force-purge", "reset"] | None,
        Meta(description="`module purge`, `module --force purge` (including sticky modules) or `module reset`."),
    ] = None
    module_use: Annotated[list[str] | None, Meta(description="Folders of module files, as for `module use`.")] = None
    module_load: Annotated[list[str] | None, Meta(description="Modules to load, in this order.")] = None
    module_unload: Annotated[list[str] | None, Meta(description="Modules to unload.")] = None
    source: Annotated[str | None, Meta(description="File to source in the shell.")] = None
    set: Annotated[dict[VariableName, Scalar] | None, Meta(description="Variables to set.")] = None
    unset: Annotated[list[VariableName] | None, Meta(description="Variables to unset.")] = None
    prepend: Annotated[
        dict[VariableName, str] | None,
        Meta(description="Values to prepend, with a colon, to path variables such as PATH."),
    ] = None
    mkdir: Annotated[list[str] | None, Meta(description="Folders to create, including their parents.")] = None
    copy: Annotated[Copy | None, Meta(description="File or folder to copy to a node's local disk.")] = None
    ulimit: Annotated[
        dict[Annotated[str, Meta(pattern="^(stack|locked-memory|open-files|processes|core)$")], str] | None,
        Meta(
            description="Shell limits: a number as for `ulimit`, or `unlimited`.",
            examples=[{"stack": "unlimited"}],
        ),
    ] = None
    raw: Annotated[
        str | None,
        Meta(
            description="A shell line. Only allowed in a user's own file, or in a trusted one. The script shows its "
            "origin."
        ),
    ] = None
    where: Annotated[
        Literal["job", "nodes", "container"],
        Meta(
            description="In the `job`'s shell on the first node; once on each of the `nodes`, before the launcher "
            "(`mkdir`, `copy`); or inside the `container`, before the training."
        ),
    ] = "job"
    when: Annotated[When | None, Meta(description="Apply only if this condition holds.")] = None
    why: Annotated[str, Meta(description="Reason, shown in the script.")] = ""
    fact: EntrySource = None


class Setting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Variables of the training. Within a scope, later settings override earlier ones. The job's `env` overrides them
    all."""

    set: Annotated[dict[VariableName, Scalar], Meta(description="Variables to set.")] = {}
    unset: Annotated[list[VariableName], Meta(description="Variables to unset.")] = []
    prepend: Annotated[
        dict[VariableName, str], Meta(description="Values to prepend, with a colon, to path variables such as PATH.")
    ] = {}
    drop: Annotated[list[str], Meta(description="Variables of lower layers to ignore.")] = []
    scope: Annotated[
        Literal["job", "node", "rank", "container"],
        Meta(
            description="In the `job`'s shell, which passes them to all nodes; on each `node` before the launcher; "
            "in each `rank`, where `${shell.LOCAL_RANK}` is known; or only inside the `container`."
        ),
    ] = "job"
    when: Annotated[When | None, Meta(description="Apply only if this condition holds.")] = None
    why: Annotated[str, Meta(description="Reason, shown in the script.")] = ""
    fact: EntrySource = None
