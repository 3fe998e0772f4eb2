"""A fault or a doubt in what the user wrote, with its place: the one type that every check hands back."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

Severity = Literal["error", "warning"]


class Place(Struct, frozen=True):
    """Where a value was written: a file, and line and column counted from 1. A flag has only a file-like name."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


class Finding(Struct, frozen=True):
    """One fault (nothing is submitted) or warning. `code` is stable and has a section in docs/findings.md."""

    code: str
    message: str
    place: Place | None = None
    hint: str | None = None
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        kind = "" if self.severity == "error" else "warning: "
        return f"{where}{self.code} {kind}{self.message}"

    def as_json(self) -> dict[str, object]:
        """The object of `validate --format json`: flat, with null for what is not known."""
        place = asdict(self.place) if self.place else {"file": None, "line": None, "column": None}
        return {"code": self.code, "severity": self.severity, "message": self.message, **place, "hint": self.hint}


def errors(findings: tuple[Finding, ...] | list[Finding]) -> list[Finding]:
    """Those findings that forbid submission."""
    return [finding for finding in findings if finding.severity == "error"]
