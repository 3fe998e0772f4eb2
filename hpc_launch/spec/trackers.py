"""`trackers:` of a job file: where a training's metrics go."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Tracker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tracker that the training itself writes to; what it needs on the site is set for it."""

    name: Annotated[
        Literal["wandb", "tensorboard"],
        Meta(description="`wandb` is Weights & Biases; `tensorboard` writes files into the run folder."),
    ]
    mode: Annotated[
        Literal["online", "offline"] | None,
        Meta(
            description="wandb: `online` sends while the job runs, `offline` writes into the run folder, for a later "
            "`wandb sync`. If left out, as the site's `internet` allows."
        ),
    ] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`trackers: [wandb]`."""
        return {"name": value} if isinstance(value, str) else None
