"""A diagnosis as text and as JSON: the output of `why`."""

from __future__ import annotations

import time
from typing import Any

import click
from msgspec import to_builtins

from hpc_launch.diagnose.diagnosis import Diagnosis, FirstFailure, Quote, Verdict
from hpc_launch.service.diagnose import RunDiagnosis
from hpc_launch.view.format_values import clean, clock_time, cut
from hpc_launch.view.state_text import progress_parts, startup_text

ROLE_FACTS = ("role", "exit_code")
"""Of the first failure: only in a job with roles."""
MAX_WIDTH = 200
"""Maximum number of characters shown of a quoted line."""


def diagnosis_json(diagnosis: Diagnosis, verdict: Verdict, run: RunDiagnosis | None) -> dict[str, Any]:
    """The object of `why --json`. The reason of the verdict is the advice to a person."""
    shown = to_builtins(diagnosis.first_failure)
    remarks = run.remarks if run is not None else ()
    data: dict[str, Any] = {
        "level": diagnosis.level,
        "class": diagnosis.failure_class,
        "cause": diagnosis.cause or None,
        "verdict": verdict.action,
        "confidence": diagnosis.confidence,
        "first_failure": {key: value for key, value in shown.items() if value is not None or key not in ROLE_FACTS},
        "evidence": to_builtins(diagnosis.evidence),
        "also": [*diagnosis.also, *(f"{remark.kind}: {remark.text}; {remark.todo}" for remark in remarks)],
        "advice": verdict.reason,
    }
    if diagnosis.start is not None:
        data["start"] = diagnosis.start
    if run is not None and (run.alive or diagnosis.failure_class == "success"):
        data["state"] = run.status.state if run.alive else None
        data["remarks"] = [
            {name: getattr(remark, name) for name in ("kind", "node", "rank", "text")}
            | {"advice": remark.todo, "evidence": to_builtins(remark.quotes)}
            for remark in remarks
        ]
    return data


def diagnosis_lines(
    diagnosis: Diagnosis,
    verdict: Verdict,
    run: RunDiagnosis | None,
    *,
    colour: bool,
) -> list[str]:
    """The diagnosis in a few lines."""
    if run is not None and run.alive:
        return _active_lines(run, colour=colour)
    good = diagnosis.failure_class == "success"
    name = diagnosis.failure_class
    title = click.style(name, fg="green" if good else "red", bold=True) if colour else name
    cause = f" ({clean(diagnosis.cause)})" if diagnosis.cause and diagnosis.cause != name else ""
    told = diagnosis.level != "unknown" and not good
    return [
        f"{title}{cause}, confidence {diagnosis.confidence}",
        *_field("level", diagnosis.level if told else ""),
        *_field("first", "" if good else _origin(diagnosis.first_failure)),
        *_field("start", diagnosis.start or ""),
        *(line for quote in diagnosis.evidence for line in _quote_lines(quote)),
        *_also(diagnosis.also),
        *_field("verdict", "" if good else verdict.action),
        *_field("bad nodes", "" if good else ", ".join(diagnosis.bad_nodes)),
        *_field("next", "" if good else verdict.reason),
        *_remarks(run),
    ]


def _active_lines(run: RunDiagnosis, *, colour: bool) -> list[str]:
    """An active run: its state, its progress and what may slow it down."""
    status, also = run.status, run.diagnosis.also
    state = click.style(status.state, bold=True) if colour else status.state
    progress = filter(None, (startup_text(status, time.time()), *progress_parts(status)))
    lines = [", ".join((state, *progress)), *_field("reason", status.reason or ""), *_also(also)]
    if status.state == "STUCK":
        return [*lines, "  the job has not started, and can never start"]
    seen = " and no known slowdown detected" if status.state == "RUNNING" else ""
    return lines + (_remarks(run) or [f"  no failure{seen} so far"])


def _field(name: str, text: str) -> list[str]:
    return [f"  {name:<9}  {clean(text)}"] if text else []


def _also(texts: tuple[str, ...]) -> list[str]:
    return [f"  also       {cut(clean(text), MAX_WIDTH)}" for text in texts]


def _remarks(run: RunDiagnosis | None) -> list[str]:
    lines: list[str] = []
    for remark in run.remarks if run is not None else ():
        lines += _field("slow", f"{remark.kind}: {remark.text}")
        for quote in remark.quotes:
            lines += _quote_lines(quote) if quote.line else [f"  {clean(quote.file)}"]
        lines += _field("try", remark.todo)
    return lines


def _origin(first: FirstFailure) -> str:
    at = f"at {clock_time(first.time, time.time())}" if first.time is not None else ""
    return f"{clean(first.place)} {at}".strip()


def _quote_lines(quote: Quote) -> list[str]:
    place = f"{clean(quote.file)}:{quote.line}" if quote.line else clean(quote.file)
    return [f"  {place}", f"    > {cut(clean(quote.text), MAX_WIDTH)}"]
