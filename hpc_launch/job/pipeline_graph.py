"""Check the stages of a pipeline: their names, what they wait for, and the values that they use. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import KeyPath
from hpc_launch.job.group_keys import STAGE_NAME, StageKeys
from hpc_launch.job.pipeline_file import PipelineFile
from hpc_launch.job.reader_messages import nearest
from hpc_launch.job.shell_text import RUNTIME

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
        message = f"`each` of stage `{name}` names `{keys.each}`, which is no sweep"
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
