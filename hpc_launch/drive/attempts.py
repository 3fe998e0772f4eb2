"""What an attempt is made of: the first from a job file, the next from what the run folder recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import read_json
from hpc_launch.drive.prepare import Ready, make_ready
from hpc_launch.drive.record import resolved_yaml
from hpc_launch.drive.secrets import find_secrets
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.model import Prepared


def first_attempt(ready: Ready, sets: Sequence[str], *, scheduler: str | None = None) -> Prepared:
    """All that a new run puts on disk and submits, to the site's scheduler or the one named.

    Raises Refused where a secret is missing.
    """
    return _prepared(ready, sets, exclude=(), scheduler=scheduler)


def next_attempt(run: RunFolder, *, sets: Sequence[str] = (), exclude: Sequence[str] = ()) -> tuple[Ready, Prepared]:
    """The next attempt of a run: its recorded job file and site, its earlier `--set` options, then the new ones.

    Raises UsageError where the folder does not hold a run, Refused as a first submission does.
    """
    attempts = run.attempts()
    recorded = next((plan for attempt in reversed(attempts) if (plan := read_json(attempt.plan))), None)
    if recorded is None:
        raise UsageError(f"{run.path} holds no attempt that could be repeated", "submit the job file anew")
    all_sets = [*_texts(recorded.get("sets")), *sets]
    excluded = [*dict.fromkeys([*_texts(recorded.get("excluded")), *exclude])]
    ready = make_ready(
        run.job_yaml, site=str(run.site_yaml), sets=all_sets, job_folder=str(recorded.get("job_folder") or run.path)
    )
    return ready, _prepared(ready, all_sets, exclude=excluded)


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _prepared(ready: Ready, sets: Sequence[str], exclude: Sequence[str], scheduler: str | None = None) -> Prepared:
    plan, loaded = ready.plan, ready.loaded
    data: dict[str, Any] = plan.as_json()
    data.update(sets=list(sets), excluded=list(exclude), job_folder=loaded.resolved.job_folder)
    overrides: dict[str, Any] = {}
    if sets:
        overrides["set"] = list(sets)
    if exclude:
        overrides["exclude"] = list(exclude)
    return Prepared(
        name=plan.name,
        site=plan.site,
        scheduler=scheduler or plan.scheduler,
        runs_folder=Path(plan.runs_folder),
        job_yaml=loaded.job_text,
        resolved_yaml=resolved_yaml(loaded.resolved),
        site_yaml=loaded.site_text,
        script=ready.script,
        plan=data,
        options=(f"--exclude={','.join(exclude)}",) if exclude else (),
        overrides=overrides,
        secrets=find_secrets(plan.secrets, os.environ),
    )
