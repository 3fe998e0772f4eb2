"""`trackers:` of a job file: experiment trackers."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Tracker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An experiment tracker that the training writes to. hpc-launch sets the variables that it needs on the site."""

    name: Annotated[
        Literal["wandb", "tensorboard", "mlflow", "neptune"],
        Meta(
            description="`wandb` is Weights & Biases; `tensorboard` writes files to the run folder. All attempts "
            "continue one run of the tracker ([details](continuation.md#one-run-of-the-tracker))."
        ),
    ]
    mode: Annotated[
        Literal["online", "offline"] | None,
        Meta(
            description="wandb: `online` sends data while the job runs; `offline` writes to the run folder for a "
            "later `wandb sync`. Default: as the site's `internet` allows."
        ),
    ] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`trackers: [wandb]`."""
        return {"name": value} if isinstance(value, str) else None
