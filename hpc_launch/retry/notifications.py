"""Messages that drivers send about a run (`notify:`): how it ended, and what the job could not send itself.

`agent/notify.py` sends them, also from inside the job, so that each is sent once. Nobody waits for a
receiver, except a process that has nothing else to do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from msgspec import to_builtins

from hpc_launch.agent import program
from hpc_launch.agent.notify_event import KEPT_S, due, events, new_event, point_over, record_event, words_of
from hpc_launch.base.errors import UserError
from hpc_launch.base.json_records import write_record
from hpc_launch.plan.recorded_parts import NotifyPlan
from hpc_launch.prepare.find_secrets import look_up
from hpc_launch.retry.context import RetryContext
from hpc_launch.runs.groups.group_folder import point_number
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import PostponedAttempt
from hpc_launch.runs.records.plan_record import newest_plan
from hpc_launch.runs.records.run_info import changeable_by_others, why_not_own
from hpc_launch.runs.records.verdict_record import VerdictRecord, read_verdict, stored_diagnosis
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.schedulers.local.local_jobs import host_with

WAIT_S = 15.0
"""How long a process that ends anyway waits for the messages. Each has 10 s."""
NOTIFY = (sys.executable, *program("notify"))
"""The command of the sender."""


def tell_end(run: RunFolder, status: RunStatus) -> RunFolder | None:
    """Record that a run is over. Never raises.

    Returns the run or sweep whose messages may have to be sent (`deliver`); None where there are none.
    """
    if not status.final or status.undecided or not status.attempts or host_with(run.path) is not None:
        return None  # or its drivers are on another host
    with suppress(OSError, UserError):
        sweep = run.sweep
        if sweep is not None and os.path.exists(sweep.path / "notify" / "points" / str(point_number(run))):
            return sweep
        plan = newest_plan(run)
        if plan is None or plan.notify is None or why_not_own(run) is not None:
            return None
        at = status.attempts[-1].ended or status.attempts[-1].submitted
        if at is None or time.time() - at < KEPT_S[True]:  # nobody wants to hear today that one ended last month
            kind = "stop" if status.state in ("STOPPED", "FAILED") else "end"
            _record(run, plan.notify, kind, _facts(status, read_verdict(run.attempts()[-1])))
        return run if sweep is None or plan.notify.each_point else sweep
    return None


def deliver(run: RunFolder, *, wait: bool = False) -> None:
    """Start the process that sends what is due for a run or a sweep. It outlives this one. Never raises."""
    with suppress(OSError):
        folder = str(run.path)
        waiting = [(name, event, channel) for name, event in events(folder) for channel in event["channels"]]
        left = [event["channels"] for name, event, channel in waiting if due(folder, name, event, channel)]
        if not left or changeable_by_others(run) is not None:
            return
        webhooks = [found for one in left if isinstance(found := one.get("webhook"), dict)]
        names = [str(one.get("secret")) for one in webhooks]
        process = subprocess.Popen(
            [*NOTIFY, "deliver", folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, **look_up(names)[0]},
            start_new_session=True,
        )
        if wait:
            with suppress(subprocess.TimeoutExpired):
                process.wait(WAIT_S)


def note_stop(context: RetryContext, verdict: VerdictRecord) -> None:
    """Record, for the job to send, what its end hook found where no other driver follows soon.

    Slurm's records may show another cause later. Without this, nobody would hear of the end until the next command.
    """
    with suppress(OSError):
        plan = newest_plan(context.run)
        waits = context.status.successor is not None or context.plan.sentinel is not None
        if plan is None or plan.notify is None or waits:
            return
        cancelled = context.view.files.cancel is not None
        state = "COMPLETED" if verdict.action == "NONE" else "CANCELLED" if cancelled else "FAILED"
        facts = _facts(context.status, verdict) | {"state": state}
        _record(context.run, plan.notify, "stop" if state == "FAILED" else "end", facts)


def postpone(context: RetryContext, why: str) -> PostponedAttempt:
    """Put on record that the scheduler does not take the next attempt at present, and tell it once. Never raises."""
    before, now = context.view.files.postponed, context.view.now
    record = PostponedAttempt(since=before.since if before is not None else now, tried=now, reason=why)
    with suppress(OSError):
        write_record(context.attempt.refused, record)
        plan = newest_plan(context.run)
        if before is None and plan is not None and plan.notify is not None:
            facts = _facts(context.status, None) | {"state": "RETRYING", "reason": record.words}
            _record(context.run, plan.notify, "no_progress", facts, name=f"postponed-{context.attempt.number}")
            deliver(context.run)
    return record


def _facts(status: RunStatus, verdict: VerdictRecord | None) -> dict[str, Any]:
    """What is known of a run and of the verdict on its last attempt."""
    last, progress = status.attempts[-1], status.progress
    diagnosis = stored_diagnosis(verdict) if verdict is not None else None
    facts: dict[str, Any] = {
        "state": status.state,
        "reason": verdict.reason if verdict is not None else status.reason,
        "attempt": last.number,
        "site": status.site,
        "job_id": last.job_id,
        "nodes": ",".join(last.nodes),
        "step": progress.step,
        "total": progress.total,
        "loss": progress.loss,
    }
    facts |= words_of(str(RunFolder(status.folder).attempt(last.number).path))
    if diagnosis is not None and diagnosis.first_failure.role is not None:
        facts["failed_first"] = diagnosis.first_failure.place
    if verdict is not None and verdict.action != "NONE":
        facts |= {"failure_class": verdict.failure_class, "cause": verdict.cause}
        facts["advice"] = diagnosis.advice if diagnosis is not None else None
    return facts


def _record(run: RunFolder, notify: NotifyPlan, kind: str, facts: dict[str, Any], name: str | None = None) -> None:
    """Record the end of a run once, or the event `name`; of a point as part of its sweep. Raises OSError."""
    settings = to_builtins(notify)
    if name is None and run.sweep is not None and not notify.each_point:
        point_over(str(run.sweep.path), str(point_number(run)), facts["state"], settings, facts["site"])
        return
    if kind not in notify.events and not (kind == "stop" and "end" in notify.events):
        return
    record_event(str(run.path), name or f"end-{facts['attempt']}", new_event(kind, run.name, settings, **facts))
