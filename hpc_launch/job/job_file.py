"""What a job file describes (a job, a sweep or a pipeline, of which `nightly.yaml/train` is a stage), and `--set`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.base.patterns import SECRET_NAME, SECRET_OPTION, SECRET_VALUE
from hpc_launch.job.document import Document, KeyPath, flow_yaml
from hpc_launch.job.job import JobSpec
from hpc_launch.job.merge import Layer
from hpc_launch.job.reader import long_form
from hpc_launch.job.yaml_source import parse_document, read_document


class GivenJob(Struct, frozen=True):
    """A job that is in no file: a program describes it."""

    document: Document
    folder: str
    """Where relative paths start; absolute."""


JobSource = Path | GivenJob
"""A job file, a stage of one, or a job that is in no file."""

_OPEN_MAPPINGS = frozenset({"args", "env", "sbatch"})
"""Keys whose children have user-chosen names: a dot is part of the name."""


def override_layer(sets: Sequence[str], findings: list[Finding]) -> Layer:
    """Build the layer of all `--set` options, in its long form. Later options override earlier ones."""
    data: dict[str, Any] = {}
    places: dict[KeyPath, Place] = {}
    written: dict[KeyPath, str] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        secret = SECRET_NAME.search(key) or SECRET_OPTION.search(key) or SECRET_VALUE.search(value)
        place = Place(f"--set {key}=…" if secret else f"--set {text}")
        if not equals or not key.strip("."):
            named = re.fullmatch(r"([\w.-]+)[: ]+(\S+)", text)
            right = f"{named[1]}={named[2]}" if named else "args.lr=0.001"
            message, hint = f"`--set {text}` is not of the form KEY=VALUE", f"for example `--set {right}`"
            findings.append(Finding(FindingCode.INVALID_SET_OPTION, message, place, hint))
            continue
        path = _split(key)
        document, faults = parse_document(f"value: {value}", str(place))
        if document is None:
            # Treat invalid YAML, such as a bare `:` or `{`, as text.
            document, faults = parse_document(f"value: {flow_yaml(value)}", str(place))
        if document is None:
            findings += faults
            continue
        holder = data
        for end, step in enumerate(path[:-1], 1):
            places[path[:end]] = place
            if not isinstance(holder.get(step), dict):
                holder[step] = {}
            holder = holder[step]
        holder[path[-1]] = document.data["value"]
        for value_path, original in document.written.items():
            written[(*path, *value_path[1:])] = original
        for value_path in document.places:
            places[(*path, *value_path[1:])] = place
    long = long_form(Layer(data, places, places, written, name="--set"), JobSpec)
    return Layer(long.data, long.places, long.key_places, long.written, name="--set")


def _split(key: str) -> tuple[str, ...]:
    first, dot, rest = key.partition(".")
    if dot and first in _OPEN_MAPPINGS:
        return (first, rest)
    return tuple(key.split("."))


def split_stage(path: Path) -> tuple[Path, str | None]:
    """The file and the stage of `nightly.yaml/train`; None for a plain file."""
    return (path.parent, path.name) if os.path.isfile(path.parent) else (path, None)


def folder_of(job: JobSource) -> str:
    """The folder of a job file, absolute: relative paths start there, and the project's own profiles are below it."""
    return job.folder if isinstance(job, GivenJob) else os.path.dirname(os.path.abspath(split_stage(job)[0]))


def has_jobs(job_file: Path) -> bool:
    """Whether a job file describes a pipeline."""
    document, _ = read_document(job_file)
    return document is not None and "jobs" in document.data


def refuse_made_up(path: JobSource, verb: str) -> None:
    """Raise UsageError for a stage that uses values of others, where a verb would start it by itself."""
    if isinstance(path, GivenJob):
        return
    file, stage = split_stage(path)
    if stage is None:
        return
    from hpc_launch.job.pipeline_file import read_pipeline

    pipeline, _ = read_pipeline(file)
    if pipeline is not None and stage in pipeline.stages and (used := list(pipeline.references(stage))):
        message = f"{path} cannot be used with `{verb}`: it needs `${{{used[0]}}}` of another stage"
        raise UsageError(message, f"submit the whole pipeline: hpc-launch submit {file}")


def read_job(path: JobSource) -> tuple[Document | None, list[Finding]]:
    """The document of a job file, or of a stage, in which the values of other stages are made up."""
    if isinstance(path, GivenJob):
        return path.document, []
    file, stage = split_stage(path)
    if stage is None:
        document, findings = read_document(file)
        if document is None or "jobs" not in document.data:
            return document, findings
    from hpc_launch.job.pipeline_file import read_stage

    return read_stage(file, stage)


def has_sweep(job_file: JobSource, sets: Sequence[str] = ()) -> bool:
    """Whether a job file describes a sweep."""
    document, _ = read_job(job_file)
    return (document is not None and document.data.get("sweep") is not None) or any(
        text.startswith(("sweep.", "sweep=")) and text != "sweep=null" for text in sets
    )


def refuse_sweep(job_file: JobSource, sets: Sequence[str], verb: str) -> None:
    """Raise UsageError where a verb that starts one job gets a sweep."""
    if has_sweep(job_file, sets):
        raise UsageError(f"hpc-launch {verb} starts no sweep", "add --set sweep=null and the values of one point")
