"""What an attempt is made of: the first from a job file, the next from what the run folder recorded."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from msgspec import structs

from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import read_text
from hpc_launch.drive.prepare import Ready, make_ready
from hpc_launch.drive.secrets import find_secrets
from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.recover.node_health import kept_off
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.node_health_store import NodeHealthStore
from hpc_launch.run.records.plan_record import PlanRecord, newest_plan, plan_record
from hpc_launch.run.records.run_info import read_info
from hpc_launch.run.records.submission import Overrides
from hpc_launch.run.records.verdict_record import VerdictRecord
from hpc_launch.run.submitting.run_store import Prepared
from hpc_launch.schedulers.registry import scheduler_for
from hpc_launch.sites.resolved import Resolved


def first_attempt(ready: Ready, sets: Sequence[str], *, scheduler: str | None = None) -> Prepared:
    """All that a new run puts on disk and submits, to the site's scheduler or the one named.

    Raises Refused where a secret is missing.
    """
    return _prepared(ready, sets, exclude=(), scheduler=scheduler)


def next_attempt(run: RunFolder, *, sets: Sequence[str] = (), exclude: Sequence[str] = ()) -> tuple[Ready, Prepared]:
    """The next attempt of a run: its recorded job file and site, its earlier `--set` options, then the new ones.

    Raises UsageError where the folder does not hold a run, Refused as a first submission does.
    """
    recorded = _recorded(run)
    all_sets = [*(text for text in recorded.sets if text not in sets), *sets]
    excluded = [*dict.fromkeys([*recorded.excluded, *exclude])]
    job_folder = recorded.job_folder or str(run.path)
    ready = make_ready(run.job_yaml, site=str(run.site_yaml), sets=all_sets, job_folder=job_folder)
    readmitted = recorded.readmitted
    return ready, _prepared(ready, all_sets, excluded, job_file=recorded.job_file, readmitted=readmitted)


def edited_since(run: RunFolder) -> str | None:
    """The job file that the run was submitted from, where it says something else by now."""
    try:
        path = _recorded(run).job_file
        if path is not None and read_text(Path(path)) != read_text(run.job_yaml):
            return path
    except (OSError, UnicodeDecodeError):
        return None
    return None


def following_attempt(run: RunFolder, decided: VerdictRecord, now: float, *, after: str | None = None) -> Prepared:
    """The attempt that a verdict asks for. One that changes nothing has the very script of the last one.

    Args:
        run: The run.
        decided: The verdict.
        now: Seconds since the epoch: what is left of the verdict's pause is left to Slurm (`--begin`).
        after: The job that must be over before the new one starts.

    Raises UsageError where the folder does not hold a run, Refused as a first submission does.
    """
    if decided.sets:
        _, prepared = next_attempt(run, sets=decided.sets, exclude=decided.exclude)
    else:
        prepared = _repeated(run, decided.exclude, decided.readmit)
    options = [f"--dependency=afterany:{after}"] if after is not None else []
    if decided.not_before > now:
        options.append(f"--begin=now+{math.ceil(decided.not_before - now)}")
    return replace(prepared, options=(*prepared.options, *options))


def _repeated(run: RunFolder, exclude: Sequence[str], readmit: Sequence[str]) -> Prepared:
    """The last attempt again: nothing is read, merged or detected anew, so that it can be made on any node."""
    recorded, info = _recorded(run), read_info(run)
    script = next((attempt.script for attempt in reversed(run.attempts()) if attempt.script.is_file()), None)
    plan = recorded.recovery
    if info is None or script is None or plan is None:
        raise UsageError(f"{run.path} holds no attempt that could be repeated", "submit the job file anew")
    readmitted = tuple(dict.fromkeys([*recorded.readmitted, *readmit]))
    excluded = tuple(node for node in dict.fromkeys([*recorded.excluded, *exclude]) if node not in readmit)
    options, overrides = _differing(info.site, info.scheduler, plan, recorded.sets, excluded, readmitted=readmitted)
    return Prepared(
        name=info.name,
        site=info.site,
        scheduler=info.scheduler,
        runs_folder=run.path.parent,
        job_yaml="",
        resolved_yaml="",
        site_yaml="",
        script=read_text(script, errors="surrogateescape"),
        plan=structs.replace(recorded, excluded=excluded, readmitted=readmitted),
        options=options,
        overrides=overrides,
        secrets=find_secrets(recorded.secrets, os.environ),
    )


def _recorded(run: RunFolder) -> PlanRecord:
    """The plan of the run's last attempt. Raises UsageError where there is none."""
    plan = newest_plan(run)
    if plan is None:
        raise UsageError(f"{run.path} holds no attempt that could be repeated", "submit the job file anew")
    return plan


def _prepared(
    ready: Ready,
    sets: Sequence[str],
    exclude: Sequence[str],
    scheduler: str | None = None,
    job_file: str | None = None,
    *,
    readmitted: Sequence[str] = (),
) -> Prepared:
    plan, loaded = ready.plan, ready.loaded
    place = loaded.resolved.place()
    origin = job_file or (os.path.abspath(place.file) if place is not None else None)
    kind = scheduler or plan.scheduler
    options, overrides = _differing(plan.site, kind, plan.recovery, sets, exclude, readmitted=readmitted)
    return Prepared(
        name=plan.name,
        site=plan.site,
        scheduler=kind,
        runs_folder=Path(plan.runs_folder),
        job_yaml=loaded.job_text,
        resolved_yaml=_resolved_yaml(loaded.resolved),
        site_yaml=loaded.site_text,
        script=ready.script,
        plan=plan_record(
            plan,
            sets=tuple(sets),
            excluded=tuple(exclude),
            readmitted=tuple(readmitted),
            job_folder=loaded.resolved.job_folder,
            job_file=origin,
        ),
        options=options,
        overrides=overrides,
        secrets=find_secrets(plan.secrets, os.environ),
    )


def _differing(
    site: str,
    scheduler: str,
    plan: RetryPlan,
    sets: Sequence[str],
    exclude: Sequence[str],
    *,
    readmitted: Sequence[str],
) -> tuple[tuple[str, ...], Overrides]:
    """What stands on sbatch's command line for this attempt alone, and the record of what differs from the job file."""
    noted = _avoided(site, plan, exclude) if scheduler == "slurm" else ()
    noted = tuple(node for node in noted if node not in readmitted)
    overrides = Overrides(set=tuple(sets), exclude=tuple(exclude), readmitted=tuple(readmitted), ledger=noted)
    # An option takes the place of the script's directive, so that the job file's own nodes have to stand here too.
    nodes = dict.fromkeys([*plan.exclude, *exclude, *noted]) if exclude or noted else {}
    return ((f"--exclude={','.join(nodes)}",) if nodes else ()), overrides


def _avoided(site: str, plan: RetryPlan, exclude: Sequence[str]) -> tuple[str, ...]:
    """The nodes of the ledger that a new job of this plan keeps off. Asks Slurm only where there are any."""
    standing = NodeHealthStore(site, plan.ledger).standing()
    if not any(one.avoided for one in standing):
        return ()
    size = scheduler_for("slurm").size(plan.partition)
    return kept_off(standing, size, plan.least_nodes, [*plan.exclude, *exclude])


def _resolved_yaml(resolved: Resolved) -> str:
    """resolved.yaml: `job` (the merged values) and `origins` (the layer and place of each)."""
    origins = {".".join(map(str, path)): str(origin) for path, origin in resolved.merged.origins.items()}
    data = {"site": resolved.site.name, "job": resolved.merged.data, "origins": origins}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
