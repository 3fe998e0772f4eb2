"""Groups of runs: `sweep:` of a job file, runs that differ in some values, and the keys of the stages of a pipeline."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

_GridValues = dict[str, list[Any]]


class RandomRange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A range to draw numbers from: whole ones if both ends are."""

    low: Annotated[float, Meta(description="Smallest number.", examples=[1e-5])]
    high: Annotated[float, Meta(description="Largest number.", examples=[1e-2])]
    scale: Annotated[
        Literal["linear", "log"], Meta(description="`log` draws the logarithm evenly, as for a learning rate.")
    ] = "linear"


class RandomValues(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Points whose values are drawn at random. The same seed draws the same points."""

    count: Annotated[int, Meta(description="Number of points.", ge=1)]
    seed: Annotated[int, Meta(description="Seed of the random numbers.", ge=0)] = 0
    values: Annotated[
        dict[str, RandomRange | list[Any]],
        Meta(
            description="Dotted keys of the job, each with a range or with the values to choose from.",
            examples=[{"args.lr": {"low": 1e-5, "high": 1e-2, "scale": "log"}}],
        ),
    ]


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The points of a sweep. Each combination of what `grid`, `zip`, `list` and `random` give is a point."""

    grid: Annotated[
        _GridValues,
        Meta(
            description="Dotted keys of the job with their values; each combination is a point.",
            examples=[{"args.lr": [1e-4, 3e-4], "args.seed": [1, 2]}],
        ),
    ] = {}
    zip: Annotated[
        _GridValues, Meta(description="Keys whose values belong together: the first of each, the second of each, …")
    ] = {}
    list_: Annotated[list[dict[str, Any]], Meta(description="Points, each with its keys and values.")] = field(
        default=[], name="list"
    )
    random: Annotated[RandomValues | None, Meta(description="Values drawn at random.")] = None
    exclude: Annotated[
        list[dict[str, Any]],
        Meta(description="Points to leave out: those that have all values of an entry."),
    ] = []
    limit: Annotated[
        int | None,
        Meta(description="How many points run at the same time. Default: no limit; one on the local scheduler.", ge=1),
    ] = None
    metric: Annotated[
        str | None,
        Meta(
            description="Regular expression for the log of a point; group 1 of its last match is the value by which "
            "points are compared. Default: the loss of `progress:`.",
            examples=[r"accuracy ([\d.]+)"],
        ),
    ] = None
    goal: Annotated[Literal["min", "max"], Meta(description="Whether a small or a large value is better.")] = "min"


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
