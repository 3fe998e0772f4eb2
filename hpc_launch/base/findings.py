"""Findings: errors and warnings about what the user wrote, each with its place. Every check returns them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import asdict

from hpc_launch.base.finding_codes import FindingCode, Severity


class Place(Struct, frozen=True):
    """Where a value was written: file, and line and column from 1. For an option, `file` is its name."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


class Finding(Struct, frozen=True):
    """One error (nothing is submitted) or warning. `code` has a section in docs/reference/findings.md."""

    code: FindingCode
    message: str
    place: Place | None = None
    hint: str | None = None
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        kind = "" if self.severity == "error" else "warning: "
        return f"{where}{self.code} {kind}{self.message}"

    def as_json(self) -> dict[str, object]:
        """The object of `validate --format json`: flat, with null for unknown values."""
        place = asdict(self.place) if self.place else {"file": None, "line": None, "column": None}
        return {"code": self.code.value, "severity": self.severity, "message": self.message, **place, "hint": self.hint}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the order of their places; files in the order of their first finding."""
    files: dict[str, int] = {}

    def key(finding: Finding) -> tuple[int, int, int]:
        place = finding.place or Place("")
        return files.setdefault(place.file, len(files)), place.line or 0, place.column or 0

    return sorted(findings, key=key)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that prevent submission."""
    return [finding for finding in findings if finding.severity == "error"]
