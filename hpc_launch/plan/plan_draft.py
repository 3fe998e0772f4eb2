"""The state while a plan is built: the resolved job, and the findings so far, each at the place to fix."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode, Severity
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import KeyPath
from hpc_launch.sites.resolved import Resolved


class PlanDraft(Struct, frozen=True):
    """What the steps of `build` read, and where they add findings."""

    resolved: Resolved
    findings: list[Finding]

    def fault(
        self, code: FindingCode, message: str, path: KeyPath, hint: str | None = None, severity: Severity = "error"
    ) -> None:
        """Add a finding at a value of the job."""
        self.fault_at(code, message, self.resolved.place(*path), hint, severity)

    def site_fault(self, code: FindingCode, message: str, path: KeyPath, hint: str) -> None:
        """Add a finding at a value of the site profile."""
        self.fault_at(code, message, self.resolved.site_origin(*path).place, hint)

    def fault_at(
        self, code: FindingCode, message: str, place: Place | None, hint: str | None, severity: Severity = "error"
    ) -> None:
        """Add a finding at a place."""
        self.findings.append(Finding(code, message, place, hint, severity))
