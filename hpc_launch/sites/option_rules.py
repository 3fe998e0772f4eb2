"""`sbatch:`, `srun:` and `rules:` of a site profile: options that a site wants, refuses or calls otherwise."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.sites.conditions import Version, When
from hpc_launch.sites.fact_sources import Fact
from hpc_launch.spec.field_types import Scalar

OptionName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]*$")]
VariableName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the site does with the options of a command. Options have their long names, without dashes."""

    add: Annotated[
        dict[OptionName, Scalar],
        Meta(description="Options for every job; true is a bare one.", examples=[{"network": "disable_rdzv_get"}]),
    ] = {}
    drop: Annotated[list[OptionName], Meta(description="Options of hpc-launch's own that are left out here.")] = []
    rename: Annotated[dict[OptionName, OptionName], Meta(description="Options that are called otherwise here.")] = {}
    require: Annotated[
        dict[OptionName, str], Meta(description="Options that every job must come to have, each with the reason.")
    ] = {}
    forbid: Annotated[
        dict[OptionName, str],
        Meta(description="Options that no job may have, each with the reason.", examples=[{"mem": "nodes are whole"}]),
    ] = {}
    since: Annotated[
        dict[OptionName, Version],
        Meta(description="The release of Slurm that an option came with; an older `scheduler.version` refuses it."),
    ] = {}


class Linked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a job, by name. `*` is any value."""

    env: Annotated[dict[VariableName, str], Meta(description="Variables.")] = {}
    sbatch: Annotated[
        dict[OptionName, str], Meta(description="Options of sbatch, by long name; a bare one has the value `true`.")
    ] = {}


class LinkedRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that belong together, or do not go together."""

    given: Annotated[Linked, Meta(description="If the job has all of these …")] = Linked()
    when: Annotated[When | None, Meta(description="… and this holds,")] = None
    needs: Annotated[Linked, Meta(description="then it must have all of these")] = Linked()
    excludes: Annotated[Linked, Meta(description="and none of these.")] = Linked()
    add: Annotated[
        bool, Meta(description="Whether a missing one of `needs` is put there; else the job is refused.")
    ] = False
    severity: Annotated[Literal["error", "warning"], Meta(description="Whether a break of it refuses the job.")] = (
        "error"
    )
    why: Annotated[str, Meta(description="The reason; the finding says it.")] = ""
    fact: Annotated[Fact | None, Meta(description="Where this is from, if not from the source of its group.")] = None


class LauncherAdvice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the site says about a launcher, and what comes with it."""

    use: Annotated[
        Literal["recommended", "allowed", "discouraged", "forbidden"],
        Meta(description="A job with a `discouraged` one is warned, with a `forbidden` one refused."),
    ] = "allowed"
    why: Annotated[str, Meta(description="The reason.")] = ""
    srun_options: Annotated[list[str], Meta(description="More options for srun with this launcher.")] = []
    sbatch: Annotated[dict[str, Scalar], Meta(description="More options of sbatch with this launcher.")] = {}

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """The word alone."""
        return {"use": value} if isinstance(value, str) else None
