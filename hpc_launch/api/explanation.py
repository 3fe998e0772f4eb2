"""What `Run.why` answers: a diagnosis that prints as `hpc-launch why` does."""

from __future__ import annotations

from html import escape
from typing import Any

from msgspec import Struct

from hpc_launch.diagnose.diagnosis import Diagnosis, Verdict
from hpc_launch.service.diagnose import RunDiagnosis
from hpc_launch.view.diagnosis_text import diagnosis_json, diagnosis_lines
from hpc_launch.view.state_text import interval_json, time_json, why_lines


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
        return active or self.diagnosis.failure_class == "success"

    def as_json(self) -> dict[str, Any]:
        """The object of `hpc-launch why --json`."""
        found = diagnosis_json(self.diagnosis, self.verdict, self.run)
        if self.run is None:
            return found
        return {**found, **time_json(self.run.account), "checkpoint_interval": interval_json(self.run.interval)}

    def lines(self, *, colour: bool = False) -> list[str]:
        """The lines of `hpc-launch why`."""
        lines = diagnosis_lines(self.diagnosis, self.verdict, self.run, colour=colour)
        return lines + (why_lines(self.run.account, self.run.interval) if self.run is not None else [])

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
