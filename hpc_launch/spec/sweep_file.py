"""Whether a job file describes a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc_launch.base.errors import UsageError
from hpc_launch.spec.yaml_source import read_document


def has_sweep(job_file: Path, sets: Sequence[str] = ()) -> bool:
    """Whether a job file describes a sweep."""
    document, _ = read_document(job_file)
    return (document is not None and document.data.get("sweep") is not None) or any(
        text.startswith(("sweep.", "sweep=")) and text != "sweep=null" for text in sets
    )


def refuse_sweep(job_file: Path, sets: Sequence[str], verb: str) -> None:
    """Raise UsageError where a verb that starts one job gets a sweep."""
    if has_sweep(job_file, sets):
        raise UsageError(f"hpc-launch {verb} starts no sweep", "add --set sweep=null and the values of one point")
