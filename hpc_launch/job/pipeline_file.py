"""A job file with `jobs:`: its stages, and the job that each of them is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.commented_yaml import as_written, yaml_text
from hpc_launch.job.document import Document, KeyPath
from hpc_launch.job.group_keys import StageKeys
from hpc_launch.job.merge import Layer, merge
from hpc_launch.job.reader import read
from hpc_launch.job.shell_text import end_of_placeholders
from hpc_launch.job.yaml_source import read_document

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_OWN_KEYS = frozenset({"after", "on", "each"})


class PipelineFile(Struct, frozen=True):
    """A pipeline as read."""

    document: Document
    stages: dict[str, StageKeys]

    @property
    def name(self) -> str:
        """Its name, as written."""
        return self.document.written.get(("name",), str(self.document.data.get("name", "")))

    def references(self, stage: str) -> dict[str, KeyPath]:
        """The values of other stages that a stage uses, such as `train.checkpoint`, with their places."""
        found: dict[str, KeyPath] = {}
        for path, text in _texts(merged(self.document, stage).data, ()):
            for match in _PLACEHOLDER.finditer(text, 0, end_of_placeholders(text)):
                name = match[1] or ""
                if name.partition(".")[0] in self.stages:
                    found.setdefault(name, path)
        return found


def read_pipeline(job_file: Path) -> tuple[PipelineFile | None, list[Finding]]:
    """Read a pipeline's file. None if it cannot be read, or if a stage's own keys are wrong."""
    document, findings = read_document(job_file)
    if document is None or findings:
        return None, findings
    jobs = document.data.get("jobs")
    if not isinstance(jobs, Mapping) or not jobs:
        place = document.places.get(("jobs",), document.places.get(()))
        message, hint = "`jobs` has no stages", "write `jobs: {train: {script: train.py}}`"
        return None, [Finding(FindingCode.INVALID_PIPELINE, message, place, hint)]
    stages = {}
    for name, data in jobs.items():
        path = ("jobs", name)
        if not isinstance(data, Mapping):
            message, hint = f"stage `{name}` must be a mapping", "give it at least `script:` or `command:`"
            findings.append(Finding(FindingCode.WRONG_TYPE, message, document.places.get(path), hint))
            continue
        own = {key: value for key, value in data.items() if key in _OWN_KEYS}
        keys, faults = read(replace(document, data={"jobs": {name: own}}), StageKeys, path=path)
        findings += faults
        if keys is not None:
            stages[name] = keys
    return (None if findings else PipelineFile(document, stages)), findings


def read_stage(file: Path, stage: str | None) -> tuple[Document | None, list[Finding]]:
    """The document of a stage, in which the values of other stages are made up."""
    pipeline, findings = read_pipeline(file)
    if pipeline is None:
        return None, findings
    if stage in pipeline.stages:
        return stage_document(pipeline, stage, made_up(pipeline.references(stage))), []
    message = f"there is no stage `{stage}` in {file}" if stage else f"{file} is a pipeline of several jobs"
    hint = f"name one of its stages: {file}/STAGE ({', '.join(pipeline.stages)})"
    place = pipeline.document.key_places.get(("jobs",))
    return None, [Finding(FindingCode.INVALID_PIPELINE, message, place, hint)]


def made_up(names: Mapping[str, object]) -> dict[str, str]:
    """Values for a check before the stages have run."""
    return {name: f"/not-known-yet/{name}" for name in names}


def stage_document(pipeline: PipelineFile, stage: str, values: Mapping[str, str]) -> Document:
    """The job file of a stage, as text, too: the shared keys, its own, and the values of other stages filled in."""
    whole = merged(pipeline.document, stage)
    written = dict(whole.written)
    data = _filled(whole.data, (), values, written)
    if any(keys.on is not None and keys.on.checkpoint == stage for keys in pipeline.stages.values()):
        data["checkpoint"] = {**(data.get("checkpoint") or {}), "follow": True}
    data["name"] = written["name",] = f"{pipeline.name}-{stage}"
    head = [f"Stage {stage} of a pipeline: its keys, the shared ones, and the values of other stages."]
    return replace(whole, data=data, written=written, text=yaml_text(as_written(data, (), written), {}, head))


def merged(document: Document, stage: str) -> Document:
    """The shared keys with those of a stage over them: mappings by key, all else replaced."""
    own = {key: value for key, value in document.data["jobs"][stage].items() if key not in _OWN_KEYS}
    below = [
        {path[2:]: value for path, value in table.items() if path[:2] == ("jobs", stage) and len(path) > 2}
        for table in (document.places, document.key_places, document.written)
    ]
    shared = {key: value for key, value in document.data.items() if key != "jobs"}
    result = merge(
        [
            Layer("shared", shared, document.places, document.key_places, document.written),
            Layer("stage", own, *below),  # type: ignore[arg-type]
        ]
    )
    return Document(result.data, result.places, result.key_places, result.written)


def _texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield path, value
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _texts(child, (*path, key))


def _filled(value: Any, path: KeyPath, values: Mapping[str, str], written: dict[KeyPath, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(child, (*path, key), values, written) for key, child in value.items()}
    if isinstance(value, list):
        return [_filled(child, (*path, at), values, written) for at, child in enumerate(value)]
    if not isinstance(value, str):
        return value

    def one(match: re.Match[str]) -> str:
        filled = values.get(match[1] or "")
        return match[0] if filled is None else filled.replace("${", "$${")

    text = _PLACEHOLDER.sub(one, value) if "${" in value else value
    if path in written:
        written[path] = text
    return text
