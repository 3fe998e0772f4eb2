"""What the types of the output have in common, and the objects that several verbs print."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Output(Struct, forbid_unknown_fields=True):
    """An object that a verb prints."""


def doc(text: str) -> Meta:
    """The meaning of a field, in Markdown: for its schema and its row in docs/reference/json.md."""
    return Meta(description=text)


Verdict = Literal["RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED", "CONTINUE", "STOP", "NONE"]


class Finding(Output):
    """An error or a warning about a file."""

    code: Annotated[str, doc("stable code; each has a section on the page [findings](reference/findings.md)")]
    severity: Annotated[
        Literal["error", "warning"],
        doc("`error`: nothing is submitted; `warning`: does not prevent submission"),
    ]
    message: Annotated[str, doc("what is wrong, as text for people")]
    file: Annotated[str | None, doc("the file; for a `--set` option, the option")]
    line: Annotated[int | None, doc("the line, counted from 1")]
    column: Annotated[int | None, doc("the column, counted from 1")]
    hint: Annotated[str | None, doc("what to do, as text for people")]


class Evidence(Output):
    """A line that supports a diagnosis."""

    file: Annotated[str, doc("the file; of a run, relative to the attempt's folder")]
    line: Annotated[int, doc("counted from 1; 0 for a source without lines, such as a row of `sacct`")]
    text: Annotated[str, doc("the line")]


class CheckpointInterval(Output):
    """How often a training saves, and how often would lose the least."""

    cost_s: Annotated[float, doc("median time of a checkpoint")]
    checkpoints: Annotated[int, doc("how many were measured")]
    every_s: Annotated[float | None, doc("median time from one to the next; null if there was only one")]
    failures: Annotated[int, doc("failures of the site's runs")]
    node_hours: Annotated[float, doc("node hours of the site's runs")]
    mtbf_s: Annotated[float, doc("mean time between failures of a run of this size")]
    best_s: Annotated[float, doc("the interval that loses the least")]
    lost: Annotated[float | None, doc("share of the time that is lost now")]
    best_lost: Annotated[float, doc("share of the time that is lost with the best interval")]
