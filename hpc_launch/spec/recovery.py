"""`retry:` and `checkpoint:` of a job file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.spec.values import Duration


class Retry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a failed run may be tried again."""

    max_attempts: Annotated[int, Meta(description="Attempts of a run in all, the first one counted.", ge=1)] = 1


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the training gets before its end, so that it can save."""

    signal_before: Annotated[
        Duration | None,
        Meta(
            description="How long before the time limit the file named by HPC_LAUNCH_STOP_FILE appears. Slurm may "
            "be up to a minute early (sbatch(1), --signal).",
            examples=["5m"],
        ),
    ] = None
