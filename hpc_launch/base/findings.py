"""A fault or a doubt in what the user wrote, with its place: the one type that every check hands back."""

from __future__ import annotations

from collections.abc import Iterable
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


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings as they stand in their files, and the files in the order in which they are first named."""
    files: dict[str, int] = {}

    def key(finding: Finding) -> tuple[int, int, int]:
        place = finding.place or Place("")
        return files.setdefault(place.file, len(files)), place.line or 0, place.column or 0

    return sorted(findings, key=key)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those findings that forbid submission."""
    return [finding for finding in findings if finding.severity == "error"]
