"""The notes on bad nodes on disk: for a site and a team, JSON lines, a file a writer as in the journals of runs."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpc_launch.base.user_dirs import state_folder, user
from hpc_launch.recover.diagnosis import Quote
from hpc_launch.recover.node_health import BadNode, NodeReport, standing

MOST_LINE = 64 * 1024


class NodeHealthStore:
    """The notes of one site.

    Args:
        site: The site's name.
        folder: The team's folder for notes (`paths.ledger` of the profile); None: the user's own.
    """

    def __init__(self, site: str, folder: str | None = None) -> None:
        self.folder = (Path(folder) if folder else state_folder() / "ledger") / site.replace("/", "_")

    def notes(self) -> list[NodeReport]:
        """All notes, whoever made them. What cannot be read is left out; never raises."""
        found: list[NodeReport] = []
        try:
            paths = sorted(path for path in self.folder.iterdir() if path.name.endswith(".jsonl"))
        except OSError:
            return found
        for path in paths:
            try:
                lines = path.read_bytes().split(b"\n")
            except OSError:
                continue
            found += [note for line in lines if (note := _note(line)) is not None]
        return found

    def standing(self, now: float | None = None) -> list[BadNode]:
        """The nodes with notes that hold."""
        return standing(self.notes(), time.time() if now is None else now)

    def write(self, notes: Sequence[NodeReport]) -> None:
        """Add notes. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}.jsonl".replace("/", "_")
        text = b"".join(msgspec.json.encode(note) + b"\n" for note in notes)
        temporary = self.folder / f".{name}"
        temporary.write_bytes(text)
        os.replace(temporary, self.folder / name)

    def clear(self, nodes: Sequence[str]) -> None:
        """Note that these nodes are well again. Raises OSError."""
        self.write([NodeReport(time=time.time(), node=node, by=user(), cleared=True) for node in nodes])


def quotes(evidence: Sequence[Quote]) -> tuple[Quote, ...]:
    """The first lines of evidence, short enough for a note."""
    return tuple(Quote(quote.file, quote.line, quote.text[:400]) for quote in evidence[:3])


def _note(line: bytes) -> NodeReport | None:
    if not line.strip() or len(line) > MOST_LINE:
        return None
    try:
        return msgspec.json.decode(line, type=NodeReport)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
