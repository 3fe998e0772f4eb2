"""`hang:` of a job file: the watcher and its hang detection."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.job.field_types import Duration


class Hang(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The watcher on each node: it records which process died first, samples the node and stops a hanging training."""

    watch: Annotated[bool, Meta(description="Run a watcher on each node. It only needs `python3` on the nodes.")] = True
    after: Annotated[
        Duration | None,
        Meta(
            description="Stop the job as hanging after this long without a log line from any node and without an "
            "active process. The watcher writes a stack trace for every rank first. null disables this "
            "check.",
            examples=["30m"],
        ),
    ] = 1800
    busy_after: Annotated[
        Duration | None,
        Meta(
            description="The same limit while processes are active: a rank waiting in NCCL keeps its core and GPU "
            "busy. Choose a value longer than the training's longest silence. null disables this check.",
        ),
    ] = 7200
    sample_every: Annotated[
        Duration, Meta(description="Interval between samples of memory, GPUs and network.", ge=1)
    ] = 30
    phases: Annotated[
        bool,
        Meta(
            description="Report the phases of the start on each node. A `sitecustomize.py` on the PYTHONPATH of the "
            "job tells the watcher when PyTorch is imported and when the rendezvous and the first collective begin and "
            "end. It runs the sitecustomize of the site or the virtual environment first."
        ),
    ] = True

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`hang: 20m`; `hang: false` disables the watcher."""
        if isinstance(value, bool):
            return {"watch": value}
        return {"after": value} if isinstance(value, str | int) else None
