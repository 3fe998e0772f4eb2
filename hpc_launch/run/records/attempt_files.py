"""What the files of an attempt say, read once and handed on as one value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_launch.base.files import read_json, read_text
from hpc_launch.run.layout import AttemptFolder
from hpc_launch.run.records import values

Data = Mapping[str, Any]

VOID = "void"
"""The first word of a claim that belongs to no job."""

CANCELLED = "cancelled"
"""How the reason of a void claim begins where a person cancelled the attempt before a job had it."""


@dataclass(frozen=True)
class Claim:
    """Whose the attempt is: a job's, or nobody's for the reason in `void`."""

    job_id: str | None = None
    void: str | None = None


@dataclass(frozen=True)
class AttemptFiles:
    """The files of one attempt as they were read; None is 'not there', or torn."""

    attempt: AttemptFolder
    intent: Data | None = None
    job: Data | None = None
    claim: Claim | None = None
    start: Data | None = None
    end: Data | None = None
    final: Data | None = None
    cancel: Data | None = None
    verdict: Data | None = None
    output: bool = False
    """Whether the training wrote anything yet."""

    @property
    def job_id(self) -> str | None:
        """The job of this attempt: the one that claimed it, else the one that was submitted for it."""
        if self.claim is not None and self.claim.job_id is not None:
            return self.claim.job_id
        return values.text(self.job.get("job_id")) if self.job else None

    @property
    def void(self) -> str | None:
        """Why no job will ever run for this attempt; None where one may."""
        return self.claim.void if self.claim else None

    @property
    def restart(self) -> int:
        """How often Slurm had requeued the job when this attempt began."""
        for data in (self.start, self.job):
            restart = values.whole(data.get("restart")) if data else None
            if restart is not None:
                return restart
        return 0


def read_claim(attempt: AttemptFolder) -> Claim | None:
    """Who claimed the attempt; None while nobody did."""
    try:
        return parse_claim(read_text(attempt.claim, errors="replace"))
    except OSError:
        return None


def parse_claim(text: str) -> Claim | None:
    """The one line of a claim file; None for an empty one, which is just being written."""
    words = text.strip().splitlines()[0].split(maxsplit=1) if text.strip() else []
    if not words:
        return None
    if words[0].rstrip(":") == VOID:
        return Claim(void=words[1].strip() if len(words) > 1 else "given up")
    return Claim(job_id=words[0])


class Reader:
    """Reads attempts again and again, and only those files that changed."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[int, int, int], Any]] = {}
        self._spoke: set[Path] = set()

    def read(self, attempt: AttemptFolder) -> AttemptFiles:
        """What is there now. Never raises: an unreadable folder reads as an empty one."""
        # Listing the folder, rather than asking for each name, makes an NFS client ask the server anew: a name that
        # was missing a moment ago would stay missing for up to a minute otherwise.
        found = {entry.name: entry for entry in _entries(attempt.path)}

        def data(path: Path) -> Data | None:
            value = self._read(found.get(path.name), path)
            return value if isinstance(value, dict) else None

        claim = self._read(found.get(attempt.claim.name), attempt.claim)
        return AttemptFiles(
            attempt=attempt,
            intent=data(attempt.intent),
            job=data(attempt.job),
            claim=claim if isinstance(claim, Claim) else None,
            start=data(attempt.start),
            end=data(attempt.end),
            final=data(attempt.final),
            cancel=data(attempt.cancel),
            verdict=data(attempt.verdict),
            output=attempt.logs.name in found and self._output(attempt),
        )

    def _read(self, entry: os.DirEntry[str] | None, path: Path) -> Data | Claim | None:
        if entry is None:
            return None
        try:
            status = entry.stat()
        except OSError:
            return None
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        kept = self._kept.get(entry.path)
        if kept is not None and kept[0] == stamp:
            return kept[1]  # type: ignore[no-any-return]
        value = read_claim(AttemptFolder(path.parent)) if path.name == "claim" else read_json(path)
        if value is not None:
            self._kept[entry.path] = (stamp, value)
        return value

    def _output(self, attempt: AttemptFolder) -> bool:
        if attempt.path not in self._spoke and any(_is_output(entry) for entry in _entries(attempt.logs)):
            self._spoke.add(attempt.path)
        return attempt.path in self._spoke


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_output(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.name.startswith("node-") and entry.name.endswith(".log") and entry.stat().st_size > 0
    except OSError:
        return False
