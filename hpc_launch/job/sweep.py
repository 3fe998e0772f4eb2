"""`sweep:` of a job file: a group of runs that differ in some values of the job."""

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
