"""`stacks:` and `options:` of a site profile: software stacks, and settings that a job enables by name."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.job.environment import Environment
from hpc_launch.job.field_types import Scalar
from hpc_launch.sites.fact_sources import EntrySource
from hpc_launch.sites.prelude import PreludeStep, Setting


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
