"""`queues:` and `account:` of a site profile: where jobs may run, how large and how long, and who pays."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.sites.internet import Internet
from hpc_launch.sites.prelude import Setting
from hpc_launch.spec.field_types import Duration, Scalar, Seconds

RANGE_PATTERN = r"^\d+(-\d*)?$"
Range = Annotated[str, Meta(title="a count or range such as 4, 1-91 or 92-", pattern=RANGE_PATTERN)]


class LimitRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a queue's limits: for these counts this time."""

    nodes: Annotated[
        Range, Meta(description="Node counts that the row is for: `4`, `1-91`, or `92-` without an upper end.")
    ]
    time: Annotated[Seconds | None, Meta(description="The longest time limit for these counts.")] = None
    gpus: Annotated[Range | None, Meta(description="GPUs in all that the row is for; any if left out.")] = None


class Preemption(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs of the queue are stopped for others."""

    grace: Annotated[Duration | None, Meta(description="Time between the signal and the end; none if left out.")] = None
    signal: Annotated[str | None, Meta(description="The signal that comes first.", examples=["SIGTERM"])] = None
    exempt: Annotated[Duration | None, Meta(description="Time from the start in which it does not happen.")] = None
    requeued: Annotated[bool | None, Meta(description="Whether Slurm queues the job again.")] = None


class Queue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place to run: a partition, a QOS, a constraint or an account, with its limits."""

    about: Annotated[str, Meta(description="What it is for.")] = ""
    node_class: Annotated[str, Meta(description="The kind of node behind it: a key of `node_classes`.")]
    partition: Annotated[str | None, Meta(description="Slurm's partition.")] = None
    qos: Annotated[str | None, Meta(description="Slurm's QOS.")] = None
    constraint: Annotated[str | None, Meta(description="For `--constraint`; all constraints of a job must hold.")] = (
        None
    )
    account_suffix: Annotated[
        str | None, Meta(description="What the account has behind it here; goes before that of the node class.")
    ] = None
    default_time: Annotated[Seconds | None, Meta(description="Time limit where the job names none.")] = None
    limits: Annotated[list[LimitRow], Meta(description="Rows of node counts and time limits; no row, no check.")] = []
    node_minutes: Annotated[int | None, Meta(description="Nodes times minutes that one job may ask for.", ge=1)] = None
    gpus: Annotated[Range | None, Meta(description="GPUs in all that one job may ask for.", examples=["4-"])] = None
    max_jobs: Annotated[int | None, Meta(description="Jobs of a user that may run at once.", ge=1)] = None
    max_submitted: Annotated[int | None, Meta(description="Jobs of a user that may be queued or running.", ge=1)] = None
    internet: Annotated[
        Internet | None, Meta(description="What its nodes reach, where that is not as the site's `internet:` says.")
    ] = None
    access: Annotated[str, Meta(description="What one must do first to be let in, such as a scalability test.")] = ""
    exclusive: Annotated[
        bool | Literal["implied", "forbidden"],
        Meta(
            description="Whether jobs get whole nodes: true adds `--exclusive`, `implied` is so without it, "
            "`forbidden` refuses a job that asks for it."
        ),
    ] = False
    memory: Annotated[
        Literal["all", "share", "per-gpu", "omit", "forbidden"],
        Meta(
            description="What is asked for where the job names no memory: `all` of the node (`--mem=0`), the `share` "
            "of the CPUs asked for, the node class's `memory_per_gpu` for each GPU, or nothing (`omit`: the site "
            "implies it; `forbidden`: a job that names memory is refused)."
        ),
    ] = "share"
    requeue: Annotated[
        Literal["never", "scheduler"] | None, Meta(description="As `scheduler.requeue`, for this queue.")
    ] = None
    preemption: Annotated[
        Preemption | None, Meta(description="How jobs are stopped for others; left out where they are not.")
    ] = None
    sbatch: Annotated[dict[str, Scalar], Meta(description="More sbatch options of this queue, by long name.")] = {}
    srun_options: Annotated[list[str], Meta(description="More options for srun in this queue.")] = []
    env: Annotated[
        list[Setting],
        Meta(description="Variables in this queue, over those of the node class.", extra={"merge": "append"}),
    ] = []
    stack: Annotated[str | None, Meta(description="The entry of `stacks:`; goes before that of the node class.")] = None
    defaults: Annotated[
        dict[str, Any], Meta(extra={"holds": "job"}), Meta(description="Keys of a job file that hold in this queue.")
    ] = {}

    @property
    def whole_nodes(self) -> bool:
        """Whether a job has its nodes for itself."""
        return self.exclusive is True or self.exclusive == "implied"


class Account(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for the account to charge."""

    required: Annotated[bool, Meta(description="Whether a job must name one.")] = False
    pattern: Annotated[
        str | None, Meta(description="A regular expression that the whole name matches, with its suffix.")
    ] = None
    variables: Annotated[
        list[str],
        Meta(
            description="Variables of the submitting shell that name it where the job does not.",
            examples=[["SBATCH_ACCOUNT"]],
        ),
    ] = []
    find: Annotated[
        str, Meta(description="How a user finds out: the site's command, or a page.", examples=["saldo -b"])
    ] = ""
