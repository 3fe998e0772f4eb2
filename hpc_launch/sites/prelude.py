"""`prelude:` and `env:` of a site profile: typed steps before the training, and variables with a scope."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.sites.conditions import When
from hpc_launch.sites.fact_sources import Fact
from hpc_launch.spec.field_types import Scalar

VariableName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

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
"""The keys of a step of which exactly one says what it does."""

PLACES = {
    "nodes": frozenset({"mkdir", "copy"}),
    "container": frozenset({"source", "set", "unset", "prepend", "mkdir", "raw"}),
}
"""What can be done elsewhere than in the job's shell."""


class Copy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or folder to bring to the node."""

    source: Annotated[str, Meta(description="What is copied, from storage that every node sees.")]
    to: Annotated[str, Meta(description="The folder that it is copied into; made if it is not there.")]


class PreludeStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step before the training starts. Exactly one key says what it does; the others say where, when and why."""

    modules: Annotated[
        Literal["purge", "force-purge", "reset"] | None,
        Meta(description="`module purge`, `module --force purge` (sticky ones too) or `module reset`."),
    ] = None
    module_use: Annotated[list[str] | None, Meta(description="Folders of module files, as for `module use`.")] = None
    module_load: Annotated[list[str] | None, Meta(description="Modules to load, in this order.")] = None
    module_unload: Annotated[list[str] | None, Meta(description="Modules to unload.")] = None
    source: Annotated[str | None, Meta(description="A file that the shell sources.")] = None
    set: Annotated[dict[VariableName, Scalar] | None, Meta(description="Variables to set.")] = None
    unset: Annotated[list[VariableName] | None, Meta(description="Variables to take away.")] = None
    prepend: Annotated[
        dict[VariableName, str] | None,
        Meta(description="Texts to put before what a variable such as PATH holds, with a colon."),
    ] = None
    mkdir: Annotated[list[str] | None, Meta(description="Folders to make, with those above them.")] = None
    copy: Annotated[Copy | None, Meta(description="A file or folder to bring to a node's own disk.")] = None
    ulimit: Annotated[
        dict[Annotated[str, Meta(pattern="^(stack|locked-memory|open-files|processes|core)$")], str] | None,
        Meta(
            description="Limits of the shell: a number as for `ulimit`, or `unlimited`.",
            examples=[{"stack": "unlimited"}],
        ),
    ] = None
    raw: Annotated[
        str | None,
        Meta(
            description="A line of shell. Only from a user's own file, or from a file of a revision that was trusted "
            "by name; the script shows where it is from."
        ),
    ] = None
    where: Annotated[
        Literal["job", "nodes", "container"],
        Meta(
            description="In the `job`'s shell on the first node; once on every one of the `nodes`, before the launcher "
            "(`mkdir`, `copy`); or inside the `container`, before the training."
        ),
    ] = "job"
    when: Annotated[When | None, Meta(description="Only where this holds.")] = None
    why: Annotated[str, Meta(description="The reason; it stands in the script.")] = ""
    fact: Annotated[Fact | None, Meta(description="Where this is from, if not from the source of its group.")] = None


class Setting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some variables of the training. Of two settings of a variable in one scope the later one holds; the job's `env`
    goes before all of them."""

    set: Annotated[dict[VariableName, Scalar], Meta(description="Variables to set.")] = {}
    unset: Annotated[list[VariableName], Meta(description="Variables to take away from the training.")] = []
    prepend: Annotated[
        dict[str, str], Meta(description="Texts to put before what a variable holds, with a colon.")
    ] = {}
    drop: Annotated[
        list[str], Meta(description="Variables that the layers below set and that shall be left alone here.")
    ] = []
    scope: Annotated[
        Literal["job", "node", "rank", "container"],
        Meta(
            description="Where: in the `job`'s shell, from which all nodes have it; on each `node` before the "
            "launcher; in each `rank`, where `${shell.LOCAL_RANK}` is known; inside the `container` alone."
        ),
    ] = "job"
    when: Annotated[When | None, Meta(description="Only where this holds.")] = None
    why: Annotated[str, Meta(description="The reason; it stands in the script.")] = ""
    fact: Annotated[Fact | None, Meta(description="Where this is from, if not from the source of its group.")] = None
