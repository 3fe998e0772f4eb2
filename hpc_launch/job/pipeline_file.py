"""A job file with `jobs:`: its stages, the job that each of them is, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.job.document import Document, KeyPath, as_written, yaml_text
from hpc_launch.job.group_keys import STAGE_NAME, StageKeys
from hpc_launch.job.merge import Layer, merge, sublayer
from hpc_launch.job.reader import read
from hpc_launch.job.shell_text import RUNTIME, end_of_placeholders
from hpc_launch.job.type_hints import nearest
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
        for path, text in merged(self.document, stage).written.items():
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
    data, written = whole.data, dict(whole.written)
    _fill(data, values, written)
    if any(keys.on is not None and keys.on.checkpoint == stage for keys in pipeline.stages.values()):
        data["checkpoint"] = {**(data.get("checkpoint") or {}), "follow": True}
    data["name"] = written["name",] = f"{pipeline.name}-{stage}"
    head = [f"Stage {stage} of a pipeline: its keys, the shared ones, and the values of other stages."]
    return replace(whole, data=data, written=written, text=yaml_text(as_written(data, (), written), {}, head))


def merged(document: Document, stage: str) -> Document:
    """The shared keys with those of a stage over them: mappings by key, all else replaced."""
    own = sublayer("stage", document, "jobs", stage)
    own = replace(own, data={key: value for key, value in own.data.items() if key not in _OWN_KEYS})
    shared = {key: value for key, value in document.data.items() if key != "jobs"}
    result = merge([Layer(shared, document.places, document.key_places, document.written, name="shared"), own])
    return Document(result.data, result.places, result.key_places, result.written)


def _fill(data: Any, values: Mapping[str, str], written: dict[KeyPath, str]) -> None:
    """Fill in the values of other stages, in the data and in the texts as written."""

    def one(match: re.Match[str]) -> str:
        filled = values.get(match[1] or "")
        return match[0] if filled is None else filled.replace("${", "$${")

    for path, text in written.items():
        if "${" in text:
            holder = data
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = written[path] = _PLACEHOLDER.sub(one, text)


Fault = Callable[[str, KeyPath, str], None]
"""Reports a message, its place below the root, and what to do."""

MOST_STAGES = 100
LONGEST_NAME = 32

SHARED_KEYS = frozenset({"name", "site", "run_dir", "code"})
"""Keys that all stages share: they say where the pipeline runs and where its files are."""

RESERVED = frozenset({name.partition(".")[0] for name in RUNTIME} | {
    "account", "checkpoint", "env", "home", "launcher", "parallel", "param", "paths", "runs", "shell", "user",
})  # fmt: skip
"""Stages of these names would hide other values: `${run.dir}`, `${env.NAME}`."""

VALUES = ("checkpoint", "step", "folder")
"""What a stage can use of another one: the newest complete checkpoint, its step, and the run folder."""


def pipeline_faults(pipeline: PipelineFile) -> list[Finding]:
    """HL218 for everything that is wrong with the stages, whatever their jobs are."""
    stages, findings = pipeline.stages, list[Finding]()

    def fault(message: str, path: KeyPath, hint: str) -> None:
        ends = (path[:end] for end in range(len(path), -1, -1))
        document = pipeline.document
        place = next((p for end in ends if (p := document.key_places.get(end) or document.places.get(end))), None)
        findings.append(Finding(FindingCode.INVALID_PIPELINE, message, place, hint))

    if len(stages) > MOST_STAGES:
        fault(f"the pipeline has {len(stages)} stages; at most {MOST_STAGES} are possible", ("jobs",), "use a sweep")
        return findings
    for name in stages:
        if not re.match(STAGE_NAME.replace("$", r"\Z"), name) or len(name) > LONGEST_NAME or name in RESERVED:
            hint = f"use letters, digits and `_`, beginning with a letter, at most {LONGEST_NAME} characters"
            hint += f", and none of: {', '.join(sorted(RESERVED))}"
            fault(f"`{name}` cannot be the name of a stage", ("jobs", name), hint)
        for key in sorted(SHARED_KEYS & pipeline.document.data["jobs"][name].keys()):
            fault(f"stage `{name}` cannot set `{key}`", ("jobs", name, key), "set it outside `jobs:`, for all stages")
        if "jobs" in pipeline.document.data["jobs"][name]:
            fault(f"stage `{name}` cannot have stages", ("jobs", name, "jobs"), "list all stages under one `jobs:`")
        for wanted, path in _targets(name, stages[name]):
            if wanted not in stages:
                closest = nearest(wanted, list(stages))
                hint = f"did you mean `{closest}`?" if closest else f"the stages: {', '.join(stages)}"
                fault(f"there is no stage `{wanted}`", path, hint)
        _check_runs(name, stages, pipeline, fault)
    if not findings and (cycle := _cycle(stages)):
        fault(f"the stages wait for each other: {' → '.join(cycle)}", ("jobs", cycle[0]), "remove one of them")
    if not findings:
        for name in stages:
            _check_values(name, pipeline, fault)
    return findings


def is_sweep(pipeline: PipelineFile, stage: str) -> bool:
    """Whether a stage is a sweep, by its own keys or the shared ones."""
    own = pipeline.document.data["jobs"][stage]
    return own.get("sweep", pipeline.document.data.get("sweep")) is not None


def before(stages: Mapping[str, StageKeys], name: str) -> set[str]:
    """The stages that are over, or have begun, when a stage starts: all that it waits for, near or far."""
    found: set[str] = set()
    left = [name]
    while left:
        near = {wanted for wanted, _ in _targets("", stages[left.pop()]) if wanted in stages}
        left += near - found
        found |= near
    return found


def _targets(name: str, keys: StageKeys) -> Iterator[tuple[str, KeyPath]]:
    for wanted in keys.conditions:
        yield wanted, ("jobs", name, "after", wanted)
    if keys.on is not None:
        yield keys.on.checkpoint, ("jobs", name, "on", "checkpoint")
    if keys.each is not None:
        yield keys.each, ("jobs", name, "each")


def _check_runs(name: str, stages: Mapping[str, StageKeys], pipeline: PipelineFile, fault: Fault) -> None:
    """Check a stage that runs several times."""
    keys = stages[name]
    if keys.on is not None and keys.each is not None:
        fault(f"stage `{name}` has both `on` and `each`", ("jobs", name, "each"), "keep one of them")
    if keys.target is None or keys.target not in stages:
        return
    key = "on" if keys.on is not None else "each"
    if is_sweep(pipeline, name):
        fault(f"stage `{name}` has `{key}`, so it cannot be a sweep", ("jobs", name, key), "remove `sweep` or it")
    if stages[keys.target].target is not None:
        message = f"`{key}` of stage `{name}` names `{keys.target}`, which runs several times itself"
        fault(message, ("jobs", name, key), "name a stage without `on` and `each`")
    elif keys.each is not None and not is_sweep(pipeline, keys.each):
        message = f"`each` of stage `{name}` names `{keys.each}`, which is not a sweep"
        fault(message, ("jobs", name, "each"), f"use `after: {keys.each}`")


def _cycle(stages: Mapping[str, StageKeys]) -> list[str]:
    """Stages that wait for each other, from one of them back to itself; empty if there are none."""
    graph = {name: [wanted for wanted, _ in _targets("", keys)] for name, keys in stages.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))  # each is followed by one that it waits for
    return []


def _check_values(name: str, pipeline: PipelineFile, fault: Fault) -> None:
    stages = pipeline.stages
    for value, path in pipeline.references(name).items():
        stage, _, key = value.partition(".")
        place: KeyPath = ("jobs", name, *path)
        if stage == name or stage not in before(stages, name):
            hint = f"add `after: {stage}` to it"
            fault(f"stage `{name}` uses `${{{value}}}`, but does not wait for `{stage}`", place, hint)
            continue
        whole = [f"best.{one}" for one in VALUES] + ["folder"]
        known = whole if is_sweep(pipeline, stage) and stages[name].target != stage else list(VALUES)
        if stages[stage].target is not None:
            known = []
        if key not in known:
            shown = ", ".join(f"${{{stage}.{one}}}" for one in known)
            hint = f"available: {shown}" if known else f"`{stage}` runs several times: name the stage that it follows"
            fault(f"stage `{name}` uses `${{{value}}}`, which is not known", place, hint)
