"""`sbatch:`, `srun:`, `rules:`, `launchers:`, `stacks:` and `options:` of a site profile."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.job.container import Environment
from hpc_launch.job.type_hints import Scalar, VariableName
from hpc_launch.sites.conditions import Version, When
from hpc_launch.sites.prelude import PreludeStep, Setting
from hpc_launch.sites.provenance import EntrySource

OptionName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]*$")]


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to the options of a command. Options are given by long name, without dashes."""

    add: Annotated[
        dict[OptionName, Scalar],
        Meta(
            description="Options to add to every job. true adds a flag without a value.",
            examples=[{"network": "disable_rdzv_get"}],
        ),
    ] = {}
    drop: Annotated[list[OptionName], Meta(description="Options of hpc-launch to omit.")] = []
    rename: Annotated[dict[OptionName, OptionName], Meta(description="Options with another name on this site.")] = {}
    require: Annotated[
        dict[OptionName, str], Meta(description="Options that every job must have, each with the reason.")
    ] = {}
    forbid: Annotated[
        dict[OptionName, str],
        Meta(description="Options that no job may have, each with the reason.", examples=[{"mem": "nodes are whole"}]),
    ] = {}
    since: Annotated[
        dict[OptionName, Version],
        Meta(description="Slurm release that introduced an option. It is rejected on an older `scheduler.version`."),
    ] = {}


class Linked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a job, by name. `*` matches any value."""

    env: Annotated[dict[VariableName, str], Meta(description="Variables.")] = {}
    sbatch: Annotated[
        dict[OptionName, str], Meta(description="sbatch options, by long name. A flag has the value `true`.")
    ] = {}


class LinkedRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that require or exclude each other."""

    given: Annotated[Linked, Meta(description="If the job has all of these settings …")] = Linked()
    when: Annotated[When | None, Meta(description="… and this condition holds, …")] = None
    needs: Annotated[Linked, Meta(description="… then it must have all of these settings …")] = Linked()
    excludes: Annotated[Linked, Meta(description="… and none of these.")] = Linked()
    add: Annotated[bool, Meta(description="Add missing settings of `needs`. Otherwise the job is rejected.")] = False
    severity: Annotated[Literal["error", "warning"], Meta(description="Whether a violation rejects the job.")] = "error"
    why: Annotated[str, Meta(description="Reason, shown in the finding.")] = ""
    fact: EntrySource = None


class LauncherAdvice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The site's advice on a launcher, and options for it."""

    use: Annotated[
        Literal["recommended", "allowed", "discouraged", "forbidden"],
        Meta(description="`discouraged` causes a warning, `forbidden` rejects the job."),
    ] = "allowed"
    why: Annotated[str, Meta(description="Reason.")] = ""
    srun_options: Annotated[list[str], Meta(description="Extra srun options for this launcher.")] = []
    sbatch: Annotated[dict[str, Scalar], Meta(description="Extra sbatch options for this launcher.")] = {}

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """The advice alone."""
        return {"use": value} if isinstance(value, str) else None


class Stack(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A software stack, such as the modules of one year or stage. It is the lowest layer of the job, so a job may
    replace or extend its modules."""

    about: Annotated[str, Meta(description="Contents of the stack.")] = ""
    environment: Annotated[Environment, Meta(description="As in a job file.")] = Environment()
    env: Annotated[dict[str, Scalar], Meta(description="As in a job file.")] = {}
    versions: Annotated[
        dict[str, str],
        Meta(
            description="Software versions in the stack, for conditions.", examples=[{"nccl": "2.22.3", "cuda": "12.6"}]
        ),
    ] = {}
    in_container: Annotated[
        bool, Meta(description="Also apply the stack to jobs in an image, which usually contain their own software.")
    ] = False
    fact: EntrySource = None


class SiteOption(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that a job enables with `options: [NAME]`: a local disk, a node mode, a workaround for a hang."""

    about: Annotated[str, Meta(description="Purpose of the option.")] = ""
    constraint: Annotated[
        str | None, Meta(description="Value for `--constraint`. All constraints of a job are combined with AND.")
    ] = None
    sbatch: Annotated[dict[str, Scalar], Meta(description="sbatch options, by long name.")] = {}
    srun_options: Annotated[list[str], Meta(description="Options for srun, one list item each.")] = []
    env: Annotated[list[Setting], Meta(description="Variables.")] = []
    prelude: Annotated[list[PreludeStep], Meta(description="Steps before the training.")] = []
    fact: EntrySource = None
