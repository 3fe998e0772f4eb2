"""What `Run.why` answers: a diagnosis that prints as `hpc-launch why` does."""

from __future__ import annotations

import time
from html import escape
from typing import Any

from msgspec import Struct

from hpc_launch.diagnose.diagnosis import Diagnosis, Verdict
from hpc_launch.service.diagnose import RunDiagnosis
from hpc_launch.view.diagnosis_text import PerformanceReport, diagnosis_json, diagnosis_lines
from hpc_launch.view.state_text import interval_json, progress_parts, startup_text, time_json, why_lines


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a job ended, or what slows it down. `print` shows it as `hpc-launch why` does."""

    diagnosis: Diagnosis
    """Class, cause, level, confidence, the first failure, and the evidence with its lines."""
    verdict: Verdict
    """What happens or should happen next, and the advice to a person."""
    report: PerformanceReport | None = None
    """State, progress and remarks on the speed of an attempt that runs or succeeded."""
    run: RunDiagnosis | None = None
    """The attempt, the status of its run and where its time went; None for log files."""

    @property
    def good(self) -> bool:
        """Whether the job succeeded, or is active without a failure."""
        active = self.report is not None and self.report.state is not None and self.report.state != "STUCK"
        return active or self.diagnosis.failure_class == "success"

    def as_json(self) -> dict[str, Any]:
        """The object of `hpc-launch why --json`."""
        found = diagnosis_json(self.diagnosis, self.verdict, self.report)
        if self.run is None:
            return found
        return {**found, **time_json(self.run.account), "checkpoint_interval": interval_json(self.run.interval)}

    def lines(self, *, colour: bool = False) -> list[str]:
        """The lines of `hpc-launch why`."""
        lines = diagnosis_lines(self.diagnosis, self.verdict, self.report, colour=colour)
        return lines + (why_lines(self.run.account, self.run.interval) if self.run is not None else [])

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def explanation(found: RunDiagnosis) -> Explanation:
    """The explanation of an attempt."""
    report, status = None, found.status
    if found.alive or found.diagnosis.failure_class == "success":
        start = startup_text(status, time.time()) if found.alive else ""
        progress = (*([start] if start else []), *progress_parts(status))
        state = status.state if found.alive else None
        report = PerformanceReport(state, status.reason, progress, found.remarks)
    return Explanation(diagnosis=found.diagnosis, verdict=found.verdict, report=report, run=found)
