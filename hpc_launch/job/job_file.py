"""What a job file describes: a job, a sweep or a pipeline, of which `nightly.yaml/train` is a stage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hpc_launch.base.errors import UsageError
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import Document
from hpc_launch.job.yaml_source import read_document


def split_stage(path: Path) -> tuple[Path, str | None]:
    """The file and the stage of `nightly.yaml/train`; None for a plain file."""
    return (path.parent, path.name) if os.path.isfile(path.parent) else (path, None)


def has_jobs(job_file: Path) -> bool:
    """Whether a job file describes a pipeline."""
    document, _ = read_document(job_file)
    return document is not None and "jobs" in document.data


def refuse_made_up(path: Path, verb: str) -> None:
    """Raise UsageError for a stage that uses values of others, where a verb would start it by itself."""
    file, stage = split_stage(path)
    if stage is None:
        return
    from hpc_launch.job.pipeline_file import read_pipeline

    pipeline, _ = read_pipeline(file)
    if pipeline is not None and stage in pipeline.stages and (used := list(pipeline.references(stage))):
        message = f"{path} cannot be used with `{verb}`: it needs `${{{used[0]}}}` of another stage"
        raise UsageError(message, f"submit the whole pipeline: hpc-launch submit {file}")


def read_job(path: Path) -> tuple[Document | None, list[Finding]]:
    """The document of a job file, or of a stage, in which the values of other stages are made up."""
    file, stage = split_stage(path)
    if stage is None:
        document, findings = read_document(file)
        if document is None or "jobs" not in document.data:
            return document, findings
    from hpc_launch.job.pipeline_file import read_stage

    return read_stage(file, stage)


def has_sweep(job_file: Path, sets: Sequence[str] = ()) -> bool:
    """Whether a job file describes a sweep."""
    document, _ = read_job(job_file)
    return (document is not None and document.data.get("sweep") is not None) or any(
        text.startswith(("sweep.", "sweep=")) and text != "sweep=null" for text in sets
    )


def refuse_sweep(job_file: Path, sets: Sequence[str], verb: str) -> None:
    """Raise UsageError where a verb that starts one job gets a sweep."""
    if has_sweep(job_file, sets):
        raise UsageError(f"hpc-launch {verb} starts no sweep", "add --set sweep=null and the values of one point")
