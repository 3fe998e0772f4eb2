"""What `doctor` and `drill` print with `--json`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, UnsetType

from docs.output_types.base import Output, doc


class Measurement(Output):
    """A measurement of `doctor --bench`. Bandwidths are bus bandwidths in GB/s (10⁹ bytes)."""

    nodes: Annotated[list[str], doc("names of the nodes")]
    per_node: Annotated[int, doc("processes on each node")]
    backend: Annotated[str, doc("`nccl` or `gloo`")]
    tool: Annotated[str, doc("The version of PyTorch")]
    curves: Annotated[
        dict[str, list[tuple[int, float, float]]],
        doc(
            "by collective (`all-reduce`, `all-gather`, `reduce-scatter`): a list of bytes, seconds and bandwidth for "
            "each size"
        ),
    ]
    not_measured: Annotated[dict[str, str], doc("what could not be measured, with the reason")]
    site: Annotated[str | None, doc("of `before`: the site")]
    run: Annotated[str | None, doc("of `before`: the run that measured")]
    time: Annotated[float | None, doc("of `before`: when it was measured")]


class HostProblem(Output):
    """Why a run cannot use a host."""

    host: Annotated[str, doc("the host")]
    message: Annotated[str, doc("what is wrong; it begins with the code of a [finding](reference/findings.md)")]
    hint: Annotated[str | None, doc("what to do, as text for people")]


class LevelValues(Output):
    """What a level of `doctor` measured."""

    measured: Annotated[Measurement | UnsetType, doc("of `bench`: this measurement")] = UNSET
    before: Annotated[
        Measurement | UnsetType | None, doc("of `bench`: the last measurement of the same shape; null if there is none")
    ] = UNSET
    problems: Annotated[list[HostProblem] | UnsetType, doc("of `hosts`: hosts that a run cannot use")] = UNSET


class Level(Output):
    """A level of `doctor`."""

    name: Annotated[
        str,
        doc(
            "the [level](how-to/doctor.md): `hosts`, `job`, `modules`, `imports`, `image`, `limits`, `reservations`, "
            "`queue`, `nodes`, `bench`, or a size of the ladder (`one GPU`, `one process`, `one node`, `two nodes`, "
            "`whole job`)"
        ),
    ]
    state: Annotated[Literal["ok", "failed", "not checked"], doc("the result")]
    lines: Annotated[list[str], doc("what was found, as sentences")]
    run: Annotated[str | None, doc("the run that the level started; null if it started none")]
    values: Annotated[LevelValues | None, doc("of `bench` and `hosts`: what was measured; else null")]


class Drill(Output):
    """The result of a drill. Fields of stages that were not reached are null. Times are seconds after the warning."""

    good: Annotated[bool, doc("whether all checks passed, as in the exit code")]
    run: Annotated[str, doc("the drill's run")]
    warned_at_step: Annotated[int | None, doc("the last step in the log when the warning was sent")]
    saved: Annotated[bool | None, doc("whether a complete checkpoint appeared")]
    checkpoint: Annotated[str | None, doc("its name")]
    checkpoint_step: Annotated[int | None, doc("its step")]
    saved_after_s: Annotated[float | None, doc("when it appeared")]
    ended_after_s: Annotated[float | None, doc("when the training exited by itself")]
    resumed: Annotated[bool | None, doc("whether the next attempt resumed from that checkpoint")]
    resumed_at_step: Annotated[int | None, doc("its first step")]
    fault: Annotated[str | None, doc("the problem, as a sentence")]
