"""The keys of a pipeline's stages beside those of a job: what a stage waits for, and how often it runs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Condition = Literal["ok", "any", "not-ok"]

STAGE_NAME = r"^[A-Za-z][A-Za-z0-9_]*(-[A-Za-z][A-Za-z0-9_]*)*$"
"""No dot, and no part that begins with a digit: `train.7` is a point of `train`, and `watch-200` one of its runs."""


class OnCheckpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of the stage for each new complete checkpoint."""

    checkpoint: Annotated[str, Meta(description="The stage whose checkpoints count.", examples=["train"])]
    every: Annotated[
        int,
        Meta(description="Only every Nth checkpoint. The last one always counts, once the training is over.", ge=1),
    ] = 1


class StageKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stage waits for. Beside these keys it has those of a job."""

    after: Annotated[
        dict[str, Condition] | list[str] | str | None,
        Meta(
            description="The stages that must be over: a name, a list, or names with a condition: `ok` (the default), "
            "`not-ok` or `any`.",
            examples=[{"train": "ok"}],
        ),
    ] = None
    on: Annotated[OnCheckpoint | None, Meta(description="Run once for each checkpoint of another stage.")] = None
    each: Annotated[
        str | None,
        Meta(description="Run once for each point of this stage, which is a sweep, when the point is over."),
    ] = None

    @property
    def conditions(self) -> dict[str, Condition]:
        """The stages in `after:`, with their conditions."""
        if isinstance(self.after, dict):
            return self.after
        names = [self.after] if isinstance(self.after, str) else self.after or []
        return dict.fromkeys(names, "ok")

    @property
    def target(self) -> str | None:
        """The stage that `on:` or `each:` names."""
        return self.on.checkpoint if self.on is not None else self.each


class Stages(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a pipeline's job file beside those that its stages share."""

    jobs: Annotated[
        dict[str, StageKeys],
        Meta(description="The stages of a pipeline by their names. Keys outside `jobs` are shared by all of them."),
    ]
