"""`queues:` and `account:` of a site profile: where jobs may run, how large and how long, and who pays."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.spec.values import Scalar, Seconds


class LimitRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a queue's limits."""

    nodes: Annotated[
        str,
        Meta(
            description="Node counts that the row is for: `4`, `1-91`, or `92-` without an upper end.",
            pattern=r"^\d+(-\d*)?$",
        ),
    ]
    time: Annotated[Seconds, Meta(description="The longest time limit for these counts.")]


class Queue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place to run: a partition, a QOS or both, with its limits."""

    node_class: Annotated[str, Meta(description="The kind of node behind it: a key of `node_classes`.")]
    partition: Annotated[str | None, Meta(description="Slurm's partition.")] = None
    qos: Annotated[str | None, Meta(description="Slurm's QOS.")] = None
    default_time: Annotated[Seconds | None, Meta(description="Time limit where the job names none.")] = None
    limits: Annotated[list[LimitRow], Meta(description="Rows of node counts and time limits; no row, no check.")] = []
    exclusive: Annotated[bool, Meta(description="Whether jobs get whole nodes: adds `--exclusive`.")] = False
    memory: Annotated[
        Literal["all", "share", "omit"],
        Meta(
            description="What is asked for where the job names no memory: `all` of the node (`--mem=0`), the `share` "
            "of the CPUs asked for, or nothing (`omit`: the site forbids or implies it)."
        ),
    ] = "share"
    sbatch: Annotated[dict[str, Scalar], Meta(description="More sbatch options of this queue, by long name.")] = {}


class Account(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for the account to charge."""

    required: Annotated[bool, Meta(description="Whether a job must name one.")] = False
    pattern: Annotated[str | None, Meta(description="A regular expression that the whole name matches.")] = None
