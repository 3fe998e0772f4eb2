"""Why a job failed, or what slows a run down, as text and as JSON: the output of `why`."""

from __future__ import annotations

import time
from html import escape
from typing import Any

from msgspec import Struct, to_builtins

from hpc_launch.diagnose.diagnosis import Diagnosis, Quote, Verdict
from hpc_launch.performance.slow_training import Remark
from hpc_launch.service.diagnose import RunDiagnosis
from hpc_launch.view.format_values import clean, clock_time, cut
from hpc_launch.view.state_text import (
    interval_json,
    interval_text,
    phases_text,
    progress_parts,
    startup_text,
    time_json,
    time_line,
)
from hpc_launch.view.terminal import painted

ROLE_FACTS = ("role", "exit_code")
"""Of the first failure: only in a job with roles."""
MAX_WIDTH = 200
"""Maximum number of characters shown of a quoted line."""


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a job ended, or what slows it down. `print` shows it as `hpc-launch why` does."""

    diagnosis: Diagnosis
    """Class, cause, level, confidence, the first failure, and the evidence with its lines."""
    verdict: Verdict
    """What happens or should happen next, and the advice to a person."""
    run: RunDiagnosis | None = None
    """The attempt, the status of its run, what may slow it down and where its time went; None for log files."""

    @property
    def good(self) -> bool:
        """Whether the job succeeded, or is active without a failure."""
        active = self.run is not None and self.run.alive and self.run.status.state != "STUCK"
        return active or self._succeeded

    @property
    def _succeeded(self) -> bool:
        return self.diagnosis.failure_class == "success"

    @property
    def _remarks(self) -> tuple[Remark, ...]:
        return self.run.remarks if self.run is not None else ()

    def as_json(self) -> dict[str, Any]:
        """The object of `hpc-launch why --json`."""
        diagnosis, run = self.diagnosis, self.run
        first = to_builtins(diagnosis.first_failure)
        data: dict[str, Any] = {
            "level": diagnosis.level,
            "class": diagnosis.failure_class,
            "cause": diagnosis.cause or None,
            "verdict": self.verdict.action,
            "confidence": diagnosis.confidence,
            "first_failure": {key: value for key, value in first.items() if value is not None or key not in ROLE_FACTS},
            "evidence": to_builtins(diagnosis.evidence),
            "also": [*diagnosis.also, *(f"{one.kind}: {one.text}; {one.todo}" for one in self._remarks)],
            "advice": self.verdict.reason,
        }
        if diagnosis.start is not None:
            data["start"] = diagnosis.start
        if run is None:
            return data
        if run.alive or self._succeeded:
            data["state"] = run.status.state if run.alive else None
            data["remarks"] = [
                {name: getattr(remark, name) for name in ("kind", "node", "rank", "text")}
                | {"advice": remark.todo, "evidence": to_builtins(remark.quotes)}
                for remark in run.remarks
            ]
        return {**data, **time_json(run.account), "checkpoint_interval": interval_json(run.interval)}

    def lines(self, *, colour: bool = False) -> list[str]:
        """The lines of `hpc-launch why`."""
        run = self.run
        if run is None:
            return self._diagnosis_lines(colour=colour)
        lines = self._active_lines(run, colour=colour) if run.alive else self._diagnosis_lines(colour=colour)
        lines += _field("time", time_line(run.account)) + _field("starts", phases_text(run.account))
        return lines + _field("saves", interval_text(run.interval) if run.interval is not None else "")

    def _diagnosis_lines(self, *, colour: bool) -> list[str]:
        diagnosis, name, good = self.diagnosis, self.diagnosis.failure_class, self._succeeded
        title = painted(name, "COMPLETED" if good else "FAILED", colour=colour)
        cause = f" ({clean(diagnosis.cause)})" if diagnosis.cause and diagnosis.cause != name else ""
        told, first = diagnosis.level != "unknown" and not good, diagnosis.first_failure
        at = f"at {clock_time(first.time, time.time())}" if first.time is not None else ""
        return [
            f"{title}{cause}, confidence {diagnosis.confidence}",
            *_field("level", diagnosis.level if told else ""),
            *_field("first", "" if good else f"{clean(first.place)} {at}".strip()),
            *_field("start", diagnosis.start or ""),
            *(line for quote in diagnosis.evidence for line in _quote_lines(quote)),
            *_also(diagnosis.also),
            *_field("verdict", "" if good else self.verdict.action),
            *_field("bad nodes", "" if good else ", ".join(diagnosis.bad_nodes)),
            *_field("next", "" if good else self.verdict.reason),
            *self._remark_lines(),
        ]

    def _active_lines(self, run: RunDiagnosis, *, colour: bool) -> list[str]:
        """An active run: its state, its progress and what may slow it down."""
        status = run.status
        progress = filter(None, (startup_text(status, time.time()), *progress_parts(status)))
        lines = [", ".join((painted(status.state, "", colour=colour), *progress))]
        lines += [*_field("reason", status.reason or ""), *_also(self.diagnosis.also)]
        if status.state == "STUCK":
            return [*lines, "  the job has not started, and can never start"]
        seen = " and no known slowdown detected" if status.state == "RUNNING" else ""
        return lines + (self._remark_lines() or [f"  no failure{seen} so far"])

    def _remark_lines(self) -> list[str]:
        lines: list[str] = []
        for remark in self._remarks:
            lines += _field("slow", f"{remark.kind}: {remark.text}")
            for quote in remark.quotes:
                lines += _quote_lines(quote) if quote.line else [f"  {clean(quote.file)}"]
            lines += _field("try", remark.todo)
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def _field(name: str, text: str) -> list[str]:
    return [f"  {name:<9}  {clean(text)}"] if text else []


def _also(texts: tuple[str, ...]) -> list[str]:
    return [f"  also       {cut(clean(text), MAX_WIDTH)}" for text in texts]


def _quote_lines(quote: Quote) -> list[str]:
    place = f"{clean(quote.file)}:{quote.line}" if quote.line else clean(quote.file)
    return [f"  {place}", f"    > {cut(clean(quote.text), MAX_WIDTH)}"]
