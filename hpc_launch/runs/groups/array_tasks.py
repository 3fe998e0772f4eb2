"""The tasks of a job array of a sweep, and the attempts of points that they run.

An array's folder has all that its tasks need: a line of `tasks` for each of them, and the files of the attempts, once
for all points that share them (template-K/). A task writes the folder of its point when it starts
(slurm_templates/array.sh.j2), unless somebody who looked at the sweep was first (`write_points`).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, structs

from hpc_launch.base.files import read_text, write_atomic
from hpc_launch.base.json_records import read_record, record_text
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.runs.groups.group_folder import SweepFolder
from hpc_launch.runs.layout import FOLDER_MODE, AttemptFolder, RunFolder
from hpc_launch.runs.records.run_info import changeable_by_others
from hpc_launch.runs.records.submission import Intent, read_claim
from hpc_launch.runs.submitting.run_store import PreparedAttempt
from hpc_launch.script.parts import TASK_MARK

_WRITTEN = "written"
"""The file of an array all of whose points have their folders."""


_TASK = re.compile(r"(\d{1,9}) (\d{1,9}) (\d{3,5}) (\d{1,9})((?: \S+=\S*)*)", re.ASCII)
_VALUE = re.compile(r" ([^\s=]+)=(\S*)")


class PointAttempt(Struct, frozen=True):
    """An attempt of a point. Points that differ only in values of the training share what was prepared."""

    number: int
    prepared: PreparedAttempt
    plan: LaunchPlan
    values: Mapping[str, str] = {}
    """The text for each mark in the script and the records. Neither has spaces."""


class ArrayTask(Struct, frozen=True):
    """A line of `tasks`: a task, the attempt of the point that it runs, and the text for the marks of its template."""

    task: int
    point: int
    attempt: int
    template: int
    values: Mapping[str, str] = {}

    def __str__(self) -> str:
        values = "".join(f" {mark}={value}" for mark, value in self.values.items())
        return f"{self.task} {self.point} {self.attempt:03d} {self.template}{values}"


def tasks_of(array: AttemptFolder) -> list[ArrayTask]:
    """The tasks of an array, without lines that are none."""
    try:
        lines = read_text(array.path / "tasks", errors="replace").splitlines()
    except OSError:
        return []
    found = filter(None, map(_TASK.fullmatch, lines))
    return [
        ArrayTask(int(one[1]), int(one[2]), int(one[3]), int(one[4]), dict(_VALUE.findall(one[5]))) for one in found
    ]


def write_tasks(array: AttemptFolder, tasks: Iterable[ArrayTask]) -> None:
    """Write the lines of an array. Raises OSError."""
    write_atomic(array.path / "tasks", "".join(f"{task}\n" for task in tasks))


def write_templates(
    array: AttemptFolder, tasks: Mapping[int, int], points: Mapping[int, PointAttempt], intent: Intent
) -> None:
    """Write the files of the attempts, once for those that share them. `tasks`: the point of each. Raises OSError."""
    known: dict[int, int] = {}
    result = []
    for task, number in tasks.items():
        point = points[number]
        at = known.setdefault(id(point.prepared), len(known))
        result.append(ArrayTask(task, number, point.number, at, point.values))
        folder = AttemptFolder(_template(array, at))
        if os.path.isdir(folder.path):
            continue
        folder.path.mkdir(mode=FOLDER_MODE)
        own = structs.replace(intent, task=0, overrides=point.prepared.overrides)
        for path, text in (
            (folder.intent, record_text(own).replace('"task": 0', f'"task": {TASK_MARK}')),
            (folder.plan, record_text(point.prepared.plan)),
            (folder.script, point.prepared.script),
        ):
            write_atomic(path, text, sync=False)
    write_tasks(array, result)


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with these values for its marks."""
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def attempt_of(sweep: SweepFolder, task: ArrayTask) -> AttemptFolder:
    """The attempt that a task runs, whether it exists or not."""
    return sweep.point(task.point).attempt(task.attempt)


def begin_attempt(sweep: SweepFolder, array: AttemptFolder, task: ArrayTask) -> bool:
    """Write the attempt of a task unless there is one; false where that is not the array's. Raises OSError."""
    run, attempt = create_point(sweep, task.point), attempt_of(sweep, task)
    if os.path.isdir(attempt.path):
        return is_own(array, attempt)
    draft = AttemptFolder(run.attempts_folder / f".{secrets.token_hex(4)}")
    draft.path.mkdir(mode=FOLDER_MODE)
    template, values = AttemptFolder(_template(array, task.template)), {TASK_MARK: str(task.task), **task.values}
    for source, path in (
        (template.intent, draft.intent),
        (template.plan, draft.plan),
        (template.script, draft.script),
    ):
        path.write_text(filled(source.read_text("utf-8", "surrogateescape"), values), "utf-8", "surrogateescape")
    draft.script.chmod(0o755)
    os.symlink(os.path.relpath(array.path / f"{task.task}.log", attempt.path), draft.batch_log)
    try:
        os.rename(draft.path, attempt.path)  # fails where there is a folder that is not empty (rename(2))
    except OSError:
        shutil.rmtree(draft.path, ignore_errors=True)
        return is_own(array, attempt)
    return True


def is_own(array: AttemptFolder, attempt: AttemptFolder) -> bool:
    """Whether an attempt is there that a task of this array is to run."""
    intent, own = (read_record(one.intent, Intent) for one in (attempt, array))
    return intent is not None and own is not None and intent.job_name == own.job_name


def create_point(sweep: SweepFolder, number: int) -> RunFolder:
    """The run folder of a point, made complete where it is not. Raises OSError."""
    run, home = sweep.point(number), sweep.run
    if run.exists:
        return run
    run.path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    with suppress(FileExistsError):
        try:
            os.link(home.after, run.after)
        except PermissionError:  # a file system without hard links
            shutil.copy2(home.after, run.after)
    for name in (home.hooks.name, home.code.name):
        if os.path.isdir(home.path / name):
            with suppress(FileExistsError):
                os.symlink(f"../{name}", run.path / name)
    run.attempts_folder.mkdir(mode=FOLDER_MODE, exist_ok=True)  # last: it completes the run
    return run


def write_points(sweep: SweepFolder) -> None:
    """Write the folders of the points that are in a job array and have none yet, in a sweep that only this user can
    change. Never raises."""
    for array in sweep.arrays() if changeable_by_others(sweep.run) is None else ():
        if os.path.exists(array.path / _WRITTEN) or not os.path.exists(array.job):
            continue
        with suppress(OSError):
            for task in tasks_of(array):
                begin_attempt(sweep, array, task)
            write_atomic(array.path / _WRITTEN, "", sync=False)


def begun(sweep: SweepFolder) -> list[RunFolder]:
    """The runs of the points that have an attempt."""
    write_points(sweep)
    return [run for run in sweep.runs() if run.attempts()]


def in_jobs(sweep: SweepFolder) -> frozenset[int]:
    """The points in job arrays that were submitted."""
    arrays = [array for array in sweep.arrays() if os.path.exists(array.job)]
    return frozenset(task.point for array in arrays for task in tasks_of(array))


def in_arrays(sweep: SweepFolder, before: AttemptFolder | None = None) -> dict[int, int]:
    """The last attempt of each point that an array has which was not abandoned; only arrays `before` this one."""
    found: dict[int, int] = {}
    for array in sweep.arrays():
        if before is not None and array.number >= before.number:
            break
        if read_claim(array) is None:
            found |= {task.point: task.attempt for task in tasks_of(array)}
    return found


def _template(array: AttemptFolder, number: int) -> Path:
    return array.path / f"template-{number}"
