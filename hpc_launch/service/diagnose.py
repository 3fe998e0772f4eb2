"""Explain why a run or any job failed, and what slows a run down that did not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import BinaryIO, cast

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.base.findings import Finding
from hpc_launch.diagnose.decide_verdict import default_action
from hpc_launch.diagnose.diagnosis import Action, Diagnosis, Verdict
from hpc_launch.diagnose.rulebook import Rulebook
from hpc_launch.performance.measured_pace import CheckpointInterval, interval_of
from hpc_launch.performance.run_times import run_times
from hpc_launch.performance.slow_training import Remark, attempt_remarks
from hpc_launch.performance.time_account import TimeAccount
from hpc_launch.runs.collect_evidence import diagnose_attempt, diagnose_files, rulebook
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.verdict_record import read_verdict
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import notify_problems
from hpc_launch.service.listener import QUIET, Listener
from hpc_launch.service.poll import poll_runs

ALIVE = frozenset({"SUBMITTING", "PENDING", "STARTING", "RUNNING", "ENDING", "STUCK"})


class RunDiagnosis(Struct, frozen=True, kw_only=True):
    """What is known of an attempt besides its diagnosis."""

    attempt: AttemptFolder
    status: RunStatus
    """The state of its run."""
    alive: bool
    """Whether the attempt has not ended yet."""
    remarks: tuple[Remark, ...]
    """What may slow it down, where it has not failed."""
    account: TimeAccount
    """Where the time of the run went."""
    interval: CheckpointInterval | None


def diagnose_run(
    folder: RunFolder, index: Index, listener: Listener = QUIET, *, number: int | None = None
) -> tuple[Diagnosis, Verdict, RunDiagnosis]:
    """Diagnose the newest attempt of a run, or attempt `number`. Raises UsageError where there is none."""
    status = poll_runs([folder], index, listener)[0]
    for problem in notify_problems(folder):
        listener.say(problem)
    attempts = folder.attempts()
    if not attempts:
        raise UsageError(f"{folder.name} has no attempt yet", f"run `hpc-launch status {folder.name}` to see its state")
    if number is not None and number not in {attempt.number for attempt in attempts}:
        raise UsageError(f"{folder.name} has no attempt {number}", f"the newest is attempt {attempts[-1].number}")
    attempt = folder.attempt(number or attempts[-1].number)
    diagnosis = diagnose_attempt(attempt, _rules(listener))
    newest = attempt.number == attempts[-1].number
    alive = status.state in ALIVE and newest and diagnosis.failure_class == "unknown"
    times = run_times(status, time.time())
    found = RunDiagnosis(
        attempt=attempt,
        status=status,
        alive=alive,
        remarks=attempt_remarks(attempt) if alive or diagnosis.failure_class == "success" else (),
        account=times.account,
        interval=interval_of(status, times, index),
    )
    return diagnosis, _verdict_on(diagnosis, attempt), found


def diagnose_logs(files: Sequence[str], stdin: BinaryIO, listener: Listener = QUIET) -> tuple[Diagnosis, Verdict]:
    """Diagnose log files as parts of one job; `-` is stdin. Raises UsageError if one cannot be read."""
    try:
        diagnosis = diagnose_files(list(files), _rules(listener), stdin)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}", "check the file name") from None
    return diagnosis, _verdict_on(diagnosis)


def _verdict_on(diagnosis: Diagnosis, attempt: AttemptFolder | None = None) -> Verdict:
    """The stored verdict, or the diagnosis's default one, with advice to the user as its reason."""
    default = default_action(diagnosis)
    stored = read_verdict(attempt) if attempt is not None else None
    if stored is None or stored.action == default:
        return Verdict(default, diagnosis.advice)
    # The advice may be to retry, which the verdict rules out.
    advice = f". What would help: {diagnosis.advice}" if diagnosis.advice else ""
    return Verdict(cast("Action", stored.action), f"{stored.reason}{advice}")


def _rules(listener: Listener) -> Rulebook:
    findings: list[Finding] = []
    rules = rulebook(findings)
    listener.warn(findings)
    return rules
