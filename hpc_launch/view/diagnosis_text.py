"""A diagnosis as text and as JSON: the output of `why`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import click
from msgspec import to_builtins

from hpc_launch.diagnose.diagnosis import Diagnosis, FirstFailure, Quote, Verdict
from hpc_launch.performance.slow_training import Remark
from hpc_launch.view.format_values import clean, clock_time, cut

ROLE_FACTS = ("role", "exit_code")
"""Of the first failure: only in a job with roles."""
MAX_WIDTH = 200
"""Maximum number of characters shown of a quoted line."""


@dataclass(frozen=True)
class PerformanceReport:
    """The state, progress and performance remarks of an attempt that runs or succeeded."""

    state: str | None
    """State of the run; None once it is over."""
    reason: str | None
    progress: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()


def diagnosis_json(diagnosis: Diagnosis, verdict: Verdict, report: PerformanceReport | None) -> dict[str, Any]:
    """The object of `why --json`. The reason of the verdict is the advice to a person."""
    shown = to_builtins(diagnosis.first_failure)
    remarks = report.remarks if report is not None else ()
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
    if report is not None:
        data["state"] = report.state
        data["remarks"] = [
            {name: getattr(remark, name) for name in ("kind", "node", "rank", "text")}
            | {"advice": remark.todo, "evidence": to_builtins(remark.quotes)}
            for remark in remarks
        ]
    return data


def diagnosis_lines(
    diagnosis: Diagnosis,
    verdict: Verdict,
    report: PerformanceReport | None,
    *,
    colour: bool,
) -> list[str]:
    """The diagnosis in a few lines."""
    if report is not None and report.state is not None:
        return _active_lines(report, diagnosis.also, colour=colour)
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
        *_remarks(report),
    ]


def _active_lines(report: PerformanceReport, also: tuple[str, ...], *, colour: bool) -> list[str]:
    """An active run: its state, its progress and what may slow it down."""
    state = click.style(str(report.state), bold=True) if colour else str(report.state)
    lines = [", ".join((state, *report.progress)), *_field("reason", report.reason or ""), *_also(also)]
    slow = _remarks(report)
    if report.state == "STUCK":
        return [*lines, "  the job has not started, and can never start"]
    seen = " and no known slowdown detected" if report.state == "RUNNING" else ""
    return lines + (slow or [f"  no failure{seen} so far"])


def _field(name: str, text: str) -> list[str]:
    return [f"  {name:<9}  {clean(text)}"] if text else []


def _also(texts: tuple[str, ...]) -> list[str]:
    return [f"  also       {cut(clean(text), MAX_WIDTH)}" for text in texts]


def _remarks(report: PerformanceReport | None) -> list[str]:
    lines: list[str] = []
    for remark in report.remarks if report is not None else ():
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
