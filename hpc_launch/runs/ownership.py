"""Whether other users could have changed what decides about a run. Drivers then leave the run alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import access_to, only_writable_by
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import read_info


def changeable_by_others(run: RunFolder) -> Path | None:
    """The first file or folder of the run that another user owns or can change; None if there is none.

    Looks at the folders and at the files from which the next attempt is made. Everything that a driver reads must
    belong to the user.
    """
    user = os.getuid()
    for path, executed in _paths(run):
        try:
            access = access_to(path, links=False)
        except FileNotFoundError:
            continue
        except OSError:
            return path
        status = access.status
        if stat.S_ISLNK(status.st_mode) or status.st_uid != user or (executed and not only_writable_by(user, access)):
            return path
    return None


def copied_from(run: RunFolder) -> str | None:
    """The run that a folder of another name is a copy of, whose jobs its records name; None for the run itself."""
    info = read_info(run)
    return info.run if info is not None and info.run and info.run != run.name else None


def refuse_foreign(run: RunFolder) -> None:
    """Raise UsageError if another user could have changed what the next attempt would run, or if it is a copy."""
    original = copied_from(run)
    if original is not None:
        raise UsageError(copy_message(run, original), f"continue {original}, or submit the job file again")
    path = changeable_by_others(run)
    if path is not None:
        hint = f"check the folder, then run `chmod -R go-w {run.path}`; only its owner can continue a run"
        raise UsageError(changeable_message(path), hint)


def refuse_other_users_run(run: RunFolder) -> None:
    """Raise UsageError for a run folder of another user, whose records may name any job."""
    if run.foreign_owner is not None:
        raise UsageError(f"{run.path} belongs to another user", "only its owner can cancel it")


def copy_message(run: RunFolder, original: str) -> str:
    """Why a copy is left alone."""
    return f"{run.path} is a copy of the run {original}"


def changeable_message(path: Path) -> str:
    """Why a run is left alone."""
    return f"{path} belongs to another user, or other users can change it"


def _paths(run: RunFolder) -> Iterator[tuple[Path, bool]]:
    """Each path, and whether only the user may be able to change it."""
    home = run.sweep or run  # the points of a sweep share its hooks
    whole = home.pipeline or home
    yield from ((path, True) for path in (whole.path, whole.pipeline_info, home.path, home.sweep_info))
    yield from ((path, True) for path in (run.path, home.hooks, run.attempts_folder, run.after))
    yield from ((path, True) for path in (run.info, run.job_yaml, run.resolved_yaml, run.site_yaml, run.stage_info))
    yield from ((one.path / "notify", True) for one in (home, run))
    for attempt in run.attempts():
        yield from ((path, True) for path in (attempt.path, attempt.script, attempt.plan, attempt.verdict))
        yield from ((path, True) for path in (attempt.logs, attempt.agent, attempt.agent / "stacks"))
        others = (attempt.intent, attempt.job, attempt.claim, attempt.start, attempt.end, attempt.final)
        yield from ((path, False) for path in (*others, attempt.diagnosis))
