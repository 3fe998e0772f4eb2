"""Prepare the next attempt of a run from what its folder recorded."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import read_text
from hpc_launch.prepare.attempts import attempt_options, notify_secrets, prepare
from hpc_launch.prepare.prepare import PreparedJob, prepare_job
from hpc_launch.prepare.secrets import find_secrets, known_secrets
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import PlanRecord, newest_plan
from hpc_launch.runs.records.run_info import read_info, refuse_foreign
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.submitting.run_store import PreparedAttempt


def next_attempt(
    run: RunFolder, *, sets: Sequence[str] = (), exclude: Sequence[str] = (), readmit: Sequence[str] = ()
) -> tuple[PreparedJob, PreparedAttempt]:
    """The next attempt of a run: its recorded job file and site, its earlier `--set` options, then the new ones.

    Raises UsageError where the folder does not hold a run, Refused as a first submission does.
    """
    recorded = _recorded(run)
    all_sets = [*(text for text in recorded.sets if text not in sets), *sets]
    excluded = [node for node in dict.fromkeys([*recorded.excluded, *exclude]) if node not in readmit]
    job_folder = recorded.job_folder or str(run.path)
    site = str(run.site_yaml)
    ready = prepare_job(run.job_yaml, site=site, sets=all_sets, job_folder=job_folder, avoid=excluded)
    readmitted = tuple(dict.fromkeys([*recorded.readmitted, *readmit]))
    return ready, prepare(ready, all_sets, excluded, job_file=recorded.job_file, readmitted=readmitted)


def edited_since(run: RunFolder) -> str | None:
    """The job file that the run was submitted from, where it has changed since."""
    if os.path.exists(run.stage_info):
        return None  # its pipeline has the job file
    try:
        path = _recorded(run).job_file
        if path is not None and read_text(Path(path)) != read_text(run.job_yaml):
            return path
    except (OSError, UnicodeDecodeError):
        return None
    return None


def following_attempt(
    run: RunFolder,
    verdict: VerdictRecord,
    now: float,
    *,
    after: str | None,
    changed: PreparedAttempt | None,
) -> PreparedAttempt:
    """The attempt that a verdict asks for. Without changes it has the same script as the last attempt.

    Args:
        run: The run.
        verdict: The verdict.
        now: Seconds since the epoch. Slurm waits for what is left of the verdict's pause (`--begin`).
        after: The job that must end before the new one starts.
        changed: The changed attempt, where it was prepared for the verdict just now.

    Raises UsageError where the folder does not hold a run, Refused as a first submission does.
    """
    if not verdict.sets and (verdict.exclude or verdict.readmit) and _names_hosts(run):
        _, prepared = next_attempt(run, exclude=verdict.exclude, readmit=verdict.readmit)
    elif not verdict.sets:
        prepared = _repeated(run, verdict.exclude, verdict.readmit)
    elif changed is not None:
        prepared = changed
    else:
        _, prepared = next_attempt(run, sets=verdict.sets, exclude=verdict.exclude)
    options = [f"--dependency=afterany:{after}"] if after is not None else []
    if verdict.not_before > now:
        options.append(f"--begin=now+{math.ceil(verdict.not_before - now)}")
    return replace(prepared, options=(*prepared.options, *options))


def _names_hosts(run: RunFolder) -> bool:
    """Whether the script itself names the hosts, because no scheduler chooses them."""
    info = read_info(run)
    return info is not None and info.scheduler == "ssh"


def _repeated(run: RunFolder, exclude: Sequence[str], readmit: Sequence[str]) -> PreparedAttempt:
    """The last attempt again. Nothing is read, merged or detected again, so that any node can prepare it."""
    recorded, info = _recorded(run), read_info(run)
    script = next((attempt.script for attempt in reversed(run.attempts()) if os.path.isfile(attempt.script)), None)
    plan = recorded.recovery
    if info is None or script is None or plan is None:
        raise UsageError(f"{run.path} has no attempt to repeat", "submit the job file again")
    readmitted = tuple(dict.fromkeys([*recorded.readmitted, *readmit]))
    excluded = tuple(node for node in dict.fromkeys([*recorded.excluded, *exclude]) if node not in readmit)
    options, overrides = attempt_options(
        info.site, info.scheduler, plan, recorded.sets, excluded, readmitted=readmitted
    )
    return PreparedAttempt(
        name=info.name,
        site=info.site,
        scheduler=info.scheduler,
        runs_folder=run.path.parent,
        job_yaml="",
        resolved_yaml="",
        site_yaml="",
        script=read_text(script, errors="surrogateescape", owner=os.getuid()),
        plan=structs.replace(recorded, excluded=excluded, readmitted=readmitted),
        options=options,
        overrides=overrides,
        secrets={
            **known_secrets(notify_secrets(recorded.notify), os.environ),
            **find_secrets(recorded.secrets, os.environ),
        },
    )


def _recorded(run: RunFolder) -> PlanRecord:
    """The plan of the run's last attempt. Raises UsageError where there is none."""
    refuse_foreign(run)
    plan = newest_plan(run)
    if plan is None:
        raise UsageError(f"{run.path} has no attempt to repeat", "submit the job file again")
    return plan
