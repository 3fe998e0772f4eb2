"""Groups of runs: `sweep:` of a job file, runs that differ in some values, and the keys of the stages of a pipeline."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

_GridValues = dict[str, list[Any]]


class RandomRange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A range to draw numbers from: whole ones if both ends are."""

    low: Annotated[float, Meta(examples=[1e-5])]
    """Smallest number."""
    high: Annotated[float, Meta(examples=[1e-2])]
    """Largest number."""
    scale: Literal["linear", "log"] = "linear"
    """`log` draws the logarithm evenly, as for a learning rate."""


class RandomValues(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Points whose values are drawn at random. The same seed draws the same points."""

    count: Annotated[int, Meta(ge=1)]
    """Number of points."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Seed of the random numbers."""
    values: Annotated[
        dict[str, RandomRange | list[Any]], Meta(examples=[{"args.lr": {"low": 1e-5, "high": 1e-2, "scale": "log"}}])
    ]
    """Dotted keys of the job, each with a range or with the values to choose from."""


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The points of a sweep. Each combination of what `grid`, `zip`, `list` and `random` give is a point."""

    grid: Annotated[_GridValues, Meta(examples=[{"args.lr": [1e-4, 3e-4], "args.seed": [1, 2]}])] = {}
    """Dotted keys of the job with their values; each combination is a point."""
    zip: _GridValues = {}
    """Keys whose values belong together: the first of each, the second of each, …"""
    list_: list[dict[str, Any]] = field(default=[], name="list")
    """Points, each with its keys and values."""
    random: RandomValues | None = None
    """Values drawn at random."""
    exclude: list[dict[str, Any]] = []
    """Points to leave out: those that have all values of an entry."""
    limit: Annotated[int | None, Meta(ge=1)] = None
    """How many points run at the same time. Default: no limit; one on the local scheduler."""
    metric: Annotated[str | None, Meta(examples=[r"accuracy ([\d.]+)"])] = None
    """Regular expression for the log of a point; group 1 of its last match is the value by which points are
    compared. Default: the loss of `progress:`."""
    goal: Literal["min", "max"] = "min"
    """Whether a small or a large value is better."""


Condition = Literal["ok", "any", "not-ok"]

STAGE_NAME = r"^[A-Za-z][A-Za-z0-9_]*(-[A-Za-z][A-Za-z0-9_]*)*$"
"""No dot, and no part that begins with a digit: `train.7` is a point of `train`, and `watch-200` one of its runs."""


class OnCheckpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of the stage for each new complete checkpoint."""

    checkpoint: Annotated[str, Meta(examples=["train"])]
    """The stage whose checkpoints count."""
    every: Annotated[int, Meta(ge=1)] = 1
    """Only every Nth checkpoint. The last one always counts, once the training is over."""


class StageKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stage waits for. Beside these keys it has those of a job."""

    after: Annotated[dict[str, Condition] | list[str] | str | None, Meta(examples=[{"train": "ok"}])] = None
    """The stages that must be over: a name, a list, or names with a condition: `ok` (the default), `not-ok` or
    `any`."""
    on: OnCheckpoint | None = None
    """Run once for each checkpoint of another stage."""
    each: str | None = None
    """Run once for each point of this stage, which is a sweep, when the point is over."""

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

    jobs: dict[str, StageKeys]
    """The stages of a pipeline by their names. Keys outside `jobs` are shared by all of them."""
