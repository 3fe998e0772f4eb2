"""A plan in the making: the job on its site, and the faults met so far, each at the place where it can be mended."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode, Severity
from hpc_launch.base.findings import Finding, Place
from hpc_launch.sites.resolved import Resolved
from hpc_launch.spec.document import KeyPath


class PlanDraft(Struct, frozen=True):
    """What the steps of `build` read, and where each notes what is wrong."""

    resolved: Resolved
    findings: list[Finding]

    def fault(
        self, code: FindingCode, message: str, path: KeyPath, hint: str | None = None, severity: Severity = "error"
    ) -> None:
        """Note a fault of a value of the job."""
        self.fault_at(code, message, self.resolved.place(*path), hint, severity)

    def site_fault(self, code: FindingCode, message: str, path: KeyPath, hint: str) -> None:
        """Note a fault of a value of the site profile."""
        self.fault_at(code, message, self.resolved.site_origin(*path).place, hint)

    def fault_at(
        self, code: FindingCode, message: str, place: Place | None, hint: str | None, severity: Severity = "error"
    ) -> None:
        """Note a fault at a place."""
        self.findings.append(Finding(code, message, place, hint, severity))
