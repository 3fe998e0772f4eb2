"""A job file with `jobs:`: its stages, and the job that each of them is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import Document, KeyPath, flow_yaml
from hpc_launch.job.pipeline import StageKeys
from hpc_launch.job.reader import read
from hpc_launch.job.shell_text import end_of_placeholders
from hpc_launch.job.yaml_source import read_document

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def stage_text(data: Mapping[str, Any], written: Mapping[KeyPath, str]) -> str:
    """The text of a document with this data."""
    return "".join(_entries(data, (), written, ""))


def _entries(data: Mapping[str, Any], path: KeyPath, written: Mapping[KeyPath, str], indent: str) -> list[str]:
    lines = []
    for key, value in data.items():
        plain = _PLAIN_KEY.match(key) is not None and key.lower() not in _WORDS
        head = f"{indent}{key if plain else flow_yaml(key)}:"
        if isinstance(value, Mapping) and value:
            lines += [head + "\n", *_entries(value, (*path, key), written, indent + "  ")]
        else:
            lines.append(f"{head} {_inline(value, (*path, key), written)}\n")
    return lines


def _inline(value: Any, path: KeyPath, written: Mapping[KeyPath, str]) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{flow_yaml(key)}: {_inline(child, (*path, key), written)}" for key, child in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(child, (*path, at), written) for at, child in enumerate(value)) + "]"
    if isinstance(value, str):
        return flow_yaml(value)
    return written.get(path) or json.dumps(value)


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
    name_place = pipeline.document.places.get(("name",))
    if name_place is not None:
        whole.places["name",] = name_place
    text = f"# Stage {stage} of a pipeline: its keys, the shared ones, and the values of other stages.\n"
    return replace(whole, data=data, written=written, text=text + stage_text(data, written))


def merged(document: Document, stage: str) -> Document:
    """The shared keys with those of a stage over them: mappings by key, all else replaced."""
    result = Document({}, {}, {}, {})
    if () in document.places:
        result.places[()] = document.places[()]
    _put(document, result, {key: value for key, value in document.data.items() if key != "jobs"}, (), (), result.data)
    own = {key: value for key, value in document.data["jobs"][stage].items() if key not in _OWN_KEYS}
    _put(document, result, own, ("jobs", stage), (), result.data)
    return result


def _put(  # noqa: PLR0917 - two documents, and where
    source: Document, result: Document, data: Mapping[str, Any], old: KeyPath, new: KeyPath, into: dict[str, Any]
) -> None:
    for key, value in data.items():
        before, after = (*old, key), (*new, key)
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _put(source, result, value, before, after, into[key])
            continue
        for path, _ in _places(into[key], after) if key in into else ():
            for table in (result.places, result.key_places, result.written):
                table.pop(path, None)
        into[key] = _copy(value)
        for path, _ in _places(value, ()):
            for table, to in (
                (source.places, result.places),
                (source.key_places, result.key_places),
                (source.written, result.written),
            ):
                if (*before, *path) in table:
                    to[(*after, *path)] = table[(*before, *path)]  # type: ignore[assignment]


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(child) for key, child in value.items()}
    return [_copy(child) for child in value] if isinstance(value, list) else value


def _places(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    yield path, value
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _places(child, (*path, key))


def _texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    return ((at, child) for at, child in _places(value, path) if isinstance(child, str))


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
