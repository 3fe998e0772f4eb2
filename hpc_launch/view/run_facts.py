"""What a run ran, how fast it was and what it cost, as names and texts; and where more about it can be read."""

from __future__ import annotations

import os
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec

from hpc_launch.base.errors import UserError
from hpc_launch.base.files import open_regular, read_text
from hpc_launch.base.findings import Place
from hpc_launch.base.json_records import read_record
from hpc_launch.base.run_program import git_output
from hpc_launch.estimate.step_time import training_speed
from hpc_launch.performance.measured_pace import MeasuredPace, measured_pace
from hpc_launch.performance.run_times import RunTimes
from hpc_launch.plan.strategy_files import leaves
from hpc_launch.prepare.job_plan import KnownTraining, training_of_run
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import PlanRecord, newest_plan
from hpc_launch.runs.records.run_info import CodeInfo, read_info
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.sites.read_profile import load_site_profile
from hpc_launch.view.format_values import number, share, step_rate
from hpc_launch.view.state_text import elapsed

TRACKER = re.compile(rb"View run [^\n]{0,200}?(https?://[^\s\"'<>\x1b]{1,300})")
"""As wandb and MLflow print it."""
LONGEST, MOST_SETTINGS = 1 << 20, 1000
"""Bytes that are read of a log or of the job's values, and how many values are compared."""
FOLDERS = ("checkpoints", "wandb", "tensorboard")


def run_facts(status: RunStatus, times: RunTimes, index: Index, now: float) -> dict[str, str]:
    """What ran, its speed and its cost, by name. Of another user's run, nothing that its files could choose."""
    run = RunFolder(status.folder)
    plan, info = newest_plan(run) or PlanRecord(), read_info(run)
    code = read_record(run.code_info, CodeInfo)
    words = ["hpc-launch", "submit", plan.job_file or "", *(f"--set={one}" for one in plan.sets)]
    versions = (f"hpc-launch {info.version}" if info is not None else "", plan.launcher, plan.container or "")
    spent = [(elapsed(one, now) or 0.0) * (len(one.nodes) or plan.nodes or 1) for one in status.attempts]
    hours = sum(spent) * (plan.gpus_per_node or 0) / 3600  # of the attempts that held the GPUs
    facts = {
        "command": shlex.join(words) if plan.job_file else "",
        "commit": f"{code.commit} of {code.root}" if code is not None and code.commit else "",
        "versions": ", ".join(filter(None, versions)),
        **_speed(run, measured_pace(status, times, index)),
        "GPU hours": number(hours) if hours else "",
    }
    if hours and not run.is_foreign:
        with suppress(UserError, OSError):
            billing = load_site_profile(str(run.site_yaml), Place(str(run.site_yaml)), run.path).billing
            price, unit = billing.gpu_hour, f" {billing.currency or ''}".rstrip()
            if price is not None:
                facts["cost"] = f"{number(hours * price)}{unit} at {number(price)}{unit} per GPU hour"
    return {name: text for name, text in facts.items() if text}


def _speed(run: RunFolder, pace: MeasuredPace | None) -> dict[str, str]:
    """Steps per second, and where model and batch are known tokens per second and MFU."""
    if pace is None or pace.step_s <= 0:
        return {}
    known = training_of_run(pace) if not run.is_foreign else ""
    texts = {"speed": step_rate(1 / pace.step_s)}
    if isinstance(known, KnownTraining):
        speed = training_speed(*known, pace.step_s)
        texts["tokens"] = f"{number(speed.tokens_s)} tokens/s"
        texts["MFU"] = f"{share(speed.mfu)} of the bf16 peak of {pace.processes} × {known.gpu.name}"
    return texts


def code_changes(run: RunFolder) -> str:
    """How the copy of the code differs from its commit, as `git diff` prints it; '' where that is not known."""
    code = read_record(run.code_info, CodeInfo)
    if run.is_foreign or code is None or not code.commit or not code.kept:
        return ""
    options = ("--no-ext-diff", "--no-textconv", "--no-color", "--diff-filter=M")
    return git_output(run.code, "--no-optional-locks", "diff", *options, code.commit, "--", ".") or ""


def run_links(run: RunFolder) -> dict[str, str]:
    """Addresses by their text: the run of the tracker, by its line in the newest logs, and folders of the run."""
    links: dict[str, str] = {}
    for attempt in run.attempts()[-1:]:
        with suppress(OSError), open_regular(attempt.first_log) as stream:
            found = TRACKER.search(stream.read(LONGEST))
            links |= {"tracker": found[1].decode("ascii", "replace")} if found else {}
        links["logs"] = attempt.logs.absolute().as_uri()
    return links | {name: (run.path / name).absolute().as_uri() for name in FOLDERS if os.path.isdir(run.path / name)}


def job_settings(run: RunFolder) -> dict[str, str]:
    """The merged values of the job by dotted key. Empty for a file that is not valid, and for another user's run."""
    try:
        values = msgspec.yaml.decode(read_text(run.resolved_yaml, longest=LONGEST), type=dict[str, Any])
        found = leaves(values["job"] if not run.is_foreign else {})
        return {key: str(value) for key, value in islice(found, MOST_SETTINGS)}
    except (OSError, ValueError, LookupError, AttributeError, RecursionError, msgspec.MsgspecError):
        return {}


def losses_by_hours(times: RunTimes, most: int, now: float) -> Iterator[tuple[list[tuple[int, float]], list[float]]]:
    """Of each attempt at most so many steps with their loss, and how many hours the jobs had run by then."""
    spent = 0.0
    for attempt in times.attempts:
        curve = times.curves[attempt.number]
        points, losses = curve.points(most), curve.losses(most)
        began = attempt.began if attempt.began is not None else now
        places = (min(bisect_left(points, step, key=itemgetter(1)), len(points) - 1) for step, _ in losses)
        yield losses, [(spent + max(0.0, points[at][0] - began)) / 3600 for at in places]
        spent += max(0.0, (attempt.ended or now) - began)
