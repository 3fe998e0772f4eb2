"""run.json and code.json: which run this is, and which code its attempts run."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.base.json_records import read_record
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.process_identity import ProcessRecord


class RunInfo(ProcessRecord, frozen=True, kw_only=True):
    """run.json: the run and the process that created it. `created` is in seconds since the epoch."""

    run: str = ""
    name: str = ""
    site: str = ""
    scheduler: str = ""
    """`slurm`, `ssh` or `local`."""
    created: float = 0.0
    version: str = ""
    """The hpc-launch release that created the run."""


class CodeInfo(Struct, frozen=True, kw_only=True):
    """code.json: the copy of the training's code."""

    root: str
    """The folder that was copied."""
    commit: str | None = None
    """The commit checked out there, where it is a git repository."""
    kept: bool = True
    """Whether there is a copy; if not, the script runs from `root`."""
    why: str | None = None
    """Why there is no copy."""
    files: int = 0
    bytes: int = 0
    linked: tuple[str, ...] = ()
    """Paths that are linked instead of copied."""


def read_info(run: RunFolder) -> RunInfo | None:
    """The content of run.json; None where the run is not complete on disk."""
    return read_record(run.info, RunInfo)
