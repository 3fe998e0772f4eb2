"""Find a run by what a user types: a name or its beginning, a job id, a folder, or `@last`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpc_launch.base.errors import UsageError, UserError
from hpc_launch.job.units import counted
from hpc_launch.runs.groups.group_folder import PipelineFolder, as_pipeline, find_point, find_stage, stage_of, sweep_of
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.submission import read_claim, was_refused
from hpc_launch.runs.run_index import Index, IndexEntry
from hpc_launch.schedulers.local.local_jobs import host_with

LAST = "@last"

SHOWN = 5
"""How many candidates an error message names."""


NEAR = 1000
"""Among how many of the newest runs similar names are searched."""


class RunElsewhere(UserError):
    """The files of a run are on its first host."""

    def __init__(self, text: str, folder: Path, host: str) -> None:
        super().__init__(f"the files of {folder.name} are on {host}", f"run the command there, with {folder}")
        self.text, self.folder, self.host = text, folder, host


class UnknownRun(UsageError):
    """No run here has this name."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(f"no run is called {text!r}", hint)
        self.text = text


def find_run(text: str, index: Index, *, stages: bool = False) -> RunFolder:
    """The run that `text` names; with `stages` it may be a sweep, a pipeline or a stage of one.

    A stage of a pipeline may have no run, or several: its folder does not exist.

    Raises UsageError with similar names, or with all runs it may mean; RunElsewhere if another host has its files.
    """
    return checked_kind(_find_point(text, index) or _find_run(text, index), text, stages=stages)


def checked_kind(run: RunFolder, text: str, *, sweeps: bool = False, stages: bool = False) -> RunFolder:
    """The run that `text` named, if it may be of its kind. Raises as `find_run`."""
    sweeps = sweeps or stages
    if not stages and not run.exists and run.pipeline is not None:
        several = len(PipelineFolder(run.pipeline).runs(stage_of(run)))
        why = f"has {counted(several, 'run')}" if several else "has not begun"
        raise UsageError(f"{run.name} {why}", f"hpc-launch status {run.pipeline.name} shows its stages")
    if not sweeps and (pipeline := as_pipeline(run)) is not None:
        first = next((stage.name for stage in pipeline.record.stages), "STAGE")
        hint = f"name a stage, such as {pipeline.name}/{first}; hpc-launch status {pipeline.name} lists them"
        raise UsageError(f"{pipeline.name} is a pipeline of {len(pipeline.record.stages)} stages", hint)
    if not sweeps and (sweep := sweep_of(run)) is not None:
        hint = f"name a point, such as {sweep.name}/0; hpc-launch status {sweep.name} lists them"
        raise UsageError(f"{sweep.name} is a sweep of {len(sweep.record.points)} points", hint)
    if (host := host_with(run.path)) is not None:
        raise RunElsewhere(text, run.path, host)
    return run


def part_names(text: str, index: Index) -> list[str]:
    """The names of the stages of a pipeline that begin with `PIPELINE/…`. Raises UsageError."""
    pipeline = as_pipeline(_find_run(text.partition("/")[0], index))
    stages = [stage.name for stage in pipeline.record.stages] if pipeline is not None else []
    home = text.partition("/")[0]
    return [name for stage in stages if (name := f"{home}/{stage}").startswith(text)]


def _find_run(text: str, index: Index) -> RunFolder:
    folder = _as_folder(text)
    if folder is not None:
        return folder
    if text == LAST:
        newest = [RunFolder(entry.folder) for entry in index.entries(limit=NEAR)]
        if not newest:
            raise UsageError("there is no run yet", hint="submit one with hpc-launch submit JOB.yaml")
        for run in newest:
            claims = list(map(read_claim, sweep.arrays() if (sweep := sweep_of(run)) else run.attempts()))
            if not claims or not all(claim is not None and was_refused(claim.void) for claim in claims):
                return run
        return newest[0]  # the scheduler took no job of any
    entries = index.entries(prefix=text) if text else []
    exact = [entry.folder for entry in entries if entry.run == text]
    by_prefix = [entry.folder for entry in entries]
    by_job = index.jobs(text) if not exact and (text[:1].isdecimal() or not by_prefix) else []
    candidates = exact or by_job or by_prefix
    if len(candidates) == 1:
        return RunFolder(candidates[0])
    if not candidates:
        if (pruned := index.pruned().get(text.partition("/")[0])) is not None:
            raise UsageError(pruned)
        raise UnknownRun(text, _near(text, index.entries(limit=NEAR)))
    names = ", ".join(folder.name for folder in candidates[:SHOWN])
    more = f" and {len(candidates) - SHOWN} more" if len(candidates) > SHOWN else ""
    raise UsageError(f"{text!r} may mean {names}{more}", hint="type more of the name, or the run's folder")


def _find_point(text: str, index: Index) -> RunFolder | None:
    """The point that `SWEEP/7`, `SWEEP/lr=3e-4` or the job `123_7` names, or the stage `PIPELINE/train`; else None."""
    from hpc_launch.runs.groups.array_tasks import tasks_of, write_points
    from hpc_launch.runs.groups.job_arrays import array_jobs

    if match := re.fullmatch(r"(\d{1,18})_(\d{1,18})", text, re.ASCII):
        sweeps = [sweep for folder in index.jobs(match[1]) if (sweep := sweep_of(RunFolder(folder))) is not None]
        for sweep in sweeps:
            array = array_jobs(sweep).get(match[1])
            for task in tasks_of(array) if array is not None else ():
                if task.task == int(match[2]):
                    write_points(sweep)
                    return sweep.point(task.point)
        return None
    name, slash, point = text.rpartition("/")
    if not slash or not name or not point or _as_folder(text) is not None:
        return None
    try:
        home = _find_point(name, index) or _find_run(name, index)
    except UsageError:
        return None
    if (pipeline := as_pipeline(home)) is not None:
        return find_stage(pipeline, point)
    sweep_found = sweep_of(home)
    if sweep_found is None:
        return None
    run = find_point(sweep_found, point)
    if not run.exists:
        write_points(sweep_found)
    if not run.exists:
        raise UsageError(f"{run.name} was not submitted yet", f"hpc-launch status {sweep_found.name} shows why")
    return run


def _as_folder(text: str) -> RunFolder | None:
    """The run that `text` is the folder of, or a folder inside.

    Only a path counts: others may create a folder with the name of a run in the current folder.
    """
    if "/" not in text and text not in (".", "..", "~"):
        return None
    try:
        if not os.path.isdir(Path(text).expanduser()):
            return None
        path = Path(text).expanduser().resolve()
    except (OSError, ValueError, RuntimeError):
        return None
    for folder in map(RunFolder, (path, *path.parents[:2])):
        if folder.exists or os.path.isdir(folder.attempts_folder):
            return folder
    return None


def _near(text: str, entries: list[IndexEntry]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(text, [entry.run for entry in entries], SHOWN, 0.4)
    near += [entry.run for entry in entries if get_close_matches(text, [entry.name], 1, 0.6) and entry.run not in near]
    if near:
        return f"did you mean {', '.join(near[:SHOWN])}?"
    return "hpc-launch list shows all runs" if entries else "there is no run yet"
