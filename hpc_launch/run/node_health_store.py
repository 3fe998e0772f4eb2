"""Reports on bad nodes on disk, per site and team: JSON Lines, one file per write."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from hpc_launch.base.json_records import file_lines, line_record, record_text
from hpc_launch.base.user_dirs import state_folder, user
from hpc_launch.recover.diagnosis import Quote
from hpc_launch.recover.node_health import BadNode, NodeReport, standing


class NodeHealthStore:
    """The reports on the nodes of one site.

    Args:
        site: The site's name.
        folder: The team's folder for reports (`paths.ledger` of the profile); None: the user's own.
    """

    def __init__(self, site: str, folder: str | None = None) -> None:
        self.folder = (Path(folder) if folder else state_folder() / "ledger") / site.replace("/", "_")

    def notes(self) -> list[NodeReport]:
        """All reports by all users. Unreadable ones are left out; never raises."""
        try:
            paths = sorted(path for path in self.folder.iterdir() if path.name.endswith(".jsonl"))
        except OSError:
            return []
        reports = [line_record(line, NodeReport) for path in paths for line in file_lines(path)]
        return [report for report in reports if report is not None]

    def standing(self, now: float | None = None) -> list[BadNode]:
        """The nodes with reports that have not expired."""
        return standing(self.notes(), time.time() if now is None else now)

    def write(self, reports: Sequence[NodeReport]) -> None:
        """Add reports. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}.jsonl".replace("/", "_")
        text = "".join(record_text(report, indent=None) for report in reports)
        temporary = self.folder / f".{name}"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.folder / name)

    def clear(self, nodes: Sequence[str]) -> None:
        """Report that these nodes are healthy again. Raises OSError."""
        self.write([NodeReport(time=time.time(), node=node, by=user(), cleared=True) for node in nodes])


def quotes(evidence: Sequence[Quote]) -> tuple[Quote, ...]:
    """The first lines of evidence, shortened for a report."""
    return tuple(Quote(quote.file, quote.line, quote.text[:400]) for quote in evidence[:3])
