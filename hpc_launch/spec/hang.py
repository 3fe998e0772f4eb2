"""`hang:` of a job file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.spec.field_types import Duration


class Hang(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The watcher on each node: it notes who died first, samples the node, and ends a training that hangs."""

    watch: Annotated[
        bool, Meta(description="Whether there is a watcher at all. It needs a `python3` on the nodes, and no more.")
    ] = True
    after: Annotated[
        Duration | None,
        Meta(
            description="No line in the log of any node, and no process at work on one, for so long: the training "
            "hangs. Every rank's stack is written down, and the job ends. null: never.",
            examples=["30m"],
        ),
    ] = 1800
    busy_after: Annotated[
        Duration | None,
        Meta(
            description="The same where processes are at work: a rank that waits inside NCCL keeps its core and its "
            "GPU busy. Longer than the longest silence of the training. null: never.",
        ),
    ] = 7200
    sample_every: Annotated[
        Duration, Meta(description="Time between two samples of memory, GPUs and network.", ge=1)
    ] = 30

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`hang: 20m`; `hang: false` is no watcher."""
        if isinstance(value, bool):
            return {"watch": value}
        return {"after": value} if isinstance(value, str | int) else None
