"""`stacks:` and `options:` of a site profile: sets of software, and settings that a job asks for by name."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.sites.fact_sources import Fact
from hpc_launch.sites.prelude import PreludeStep, Setting
from hpc_launch.spec.environment import Environment
from hpc_launch.spec.field_types import Scalar


class Stack(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of software that fits together: a year's or a stage's modules. It counts as the lowest of the job's layers,
    so that a job may replace its modules or add to them."""

    about: Annotated[str, Meta(description="What it holds.")] = ""
    environment: Annotated[Environment, Meta(description="As in a job file.")] = Environment()
    env: Annotated[dict[str, Scalar], Meta(description="As in a job file.")] = {}
    versions: Annotated[
        dict[str, str],
        Meta(description="What is in it, for conditions.", examples=[{"nccl": "2.22.3", "cuda": "12.6"}]),
    ] = {}
    in_container: Annotated[
        bool, Meta(description="Whether a job in an image gets it too; an image brings software of its own.")
    ] = False
    fact: Annotated[Fact | None, Meta(description="Where this is from, if not from the source of its group.")] = None


class SiteOption(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that a job asks for with `options: [NAME]`: a local disk, a mode of the nodes, a cure for a hang."""

    about: Annotated[str, Meta(description="What it is for.")] = ""
    constraint: Annotated[str | None, Meta(description="For `--constraint`; all constraints of a job must hold.")] = (
        None
    )
    sbatch: Annotated[dict[str, Scalar], Meta(description="Options of sbatch, by long name.")] = {}
    srun_options: Annotated[list[str], Meta(description="Options for srun, each a list item.")] = []
    env: Annotated[list[Setting], Meta(description="Variables.")] = []
    prelude: Annotated[list[PreludeStep], Meta(description="Steps before the training.")] = []
    fact: Annotated[Fact | None, Meta(description="Where this is from, if not from the source of its group.")] = None
