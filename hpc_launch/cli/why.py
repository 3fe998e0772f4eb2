"""`why`: explain why a run failed, or any job from its log files."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, cast

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.shared_options import echo_json, json_option

if TYPE_CHECKING:
    from hpc_launch.diagnose.diagnosis import Action, Diagnosis, Verdict
    from hpc_launch.performance.checkpoint_interval import CheckpointInterval
    from hpc_launch.performance.time_account import TimeAccount
    from hpc_launch.runs.layout import AttemptFolder
    from hpc_launch.view.diagnosis_text import PerformanceReport

FAILED = 1
ALIVE = frozenset({"SUBMITTING", "PENDING", "STARTING", "RUNNING", "ENDING"})


@click.command("why")
@click.argument("run", required=False, metavar="[RUN]", shell_complete=complete_run)
@click.option(
    "--log",
    "logs",
    metavar="FILE",
    multiple=True,
    help="Diagnose log files of any job instead of a run; - is stdin. Repeatable.",
)
@click.option(
    "--attempt", "number", type=click.IntRange(min=1), metavar="K", help="Attempt number (default: the newest)."
)
@click.argument("more", nargs=-1, metavar="[FILE...]", type=click.UNPROCESSED)
@json_option
def command(run: str | None, logs: tuple[str, ...], number: int | None, more: tuple[str, ...], as_json: bool) -> int:
    """Explain why a run failed: the failure class, the rank or node that failed first, the evidence, and what to do.

    For a run that is active or succeeded, report what may slow it down: a slow node, TCP sockets instead of the fast
    network, unused NVLink, throttled clocks, slow data loading, small gradient buckets. Also shows where the time of
    the run went, and which interval between checkpoints would lose the least.

    With --log, diagnose log files of any job; several files are treated as parts of one job. Exits with 0 for a success
    or an active run, 1 for a failure or an unexplained end.

    \b
    hpc-launch why @last
    hpc-launch why tiny-gpt --attempt 2 --json
    hpc-launch why --log slurm-4711.out
    hpc-launch why --log node0.err node1.err
    """
    report: PerformanceReport | None = None
    spent: tuple[TimeAccount, CheckpointInterval | None] | None = None
    if logs:
        files: dict[str, str] = {}
        diagnosis = _of_files([*logs, *([run] if run else []), *more])
        verdict = _verdict(diagnosis, None)
    else:
        diagnosis, verdict, files, report, spent = _of_run(run, more, number)
    if as_json:
        from hpc_launch.view.diagnosis_text import diagnosis_json
        from hpc_launch.view.time_text import interval_json, time_json

        times = {**time_json(spent[0]), "checkpoint_interval": interval_json(spent[1])} if spent is not None else {}
        echo_json({**diagnosis_json(diagnosis, verdict, report), **times})
    else:
        from hpc_launch.view.diagnosis_text import diagnosis_lines
        from hpc_launch.view.terminal import wants_colour, write_lines
        from hpc_launch.view.time_text import why_lines

        lines = diagnosis_lines(diagnosis, verdict, files, report, colour=wants_colour(sys.stdout))
        write_lines(lines + (why_lines(*spent) if spent is not None else []))
    active = report is not None and report.state in ALIVE
    return 0 if active or diagnosis.failure_class == "success" else FAILED


def _of_files(names: list[str]) -> Diagnosis:
    """Diagnose log files. Raises UsageError if one cannot be read."""
    from hpc_launch.base.errors import UsageError
    from hpc_launch.base.findings import Finding
    from hpc_launch.cli.warn import warn
    from hpc_launch.runs.evidence.collect_evidence import diagnose_files
    from hpc_launch.runs.evidence.rule_files import rulebook

    findings: list[Finding] = []
    rules = rulebook(findings)
    warn(findings)
    try:
        return diagnose_files(names, rules, sys.stdin.buffer)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}", "check the file name") from None


def _verdict(diagnosis: Diagnosis, attempt: AttemptFolder | None) -> Verdict:
    """The stored verdict, or the diagnosis's default one, with advice to the user as its reason."""
    from hpc_launch.diagnose.diagnosis import Verdict
    from hpc_launch.diagnose.retry_policy import default_action
    from hpc_launch.runs.records.verdict_record import read_verdict

    default = default_action(diagnosis)
    stored = read_verdict(attempt) if attempt is not None else None
    if stored is None or stored.action == default:
        return Verdict(default, diagnosis.advice)
    # The advice may be to retry, which the verdict rules out.
    advice = f". What would help: {diagnosis.advice}" if diagnosis.advice else ""
    return Verdict(cast("Action", stored.action), f"{stored.reason}{advice}")


def _of_run(
    name: str | None, more: tuple[str, ...], number: int | None
) -> tuple[Diagnosis, Verdict, dict[str, str], PerformanceReport | None, tuple[TimeAccount, CheckpointInterval | None]]:
    """Diagnose the newest attempt of a run, or attempt `number`; with its report if it has not failed, and where the
    time of the run went."""
    from hpc_launch.base.errors import UsageError
    from hpc_launch.base.findings import Finding
    from hpc_launch.cli.follow import poll_runs
    from hpc_launch.cli.warn import print_note, warn
    from hpc_launch.performance.attempt_speed import attempt_remarks
    from hpc_launch.performance.checkpoint_interval import interval_of
    from hpc_launch.performance.run_times import run_times
    from hpc_launch.runs.evidence.collect_evidence import diagnose_attempt
    from hpc_launch.runs.evidence.rule_files import rulebook
    from hpc_launch.runs.find_run import find_run
    from hpc_launch.runs.notification_state import notify_problems
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.view.diagnosis_text import PerformanceReport
    from hpc_launch.view.state_text import progress_parts, startup_text

    if name is None or more:
        raise UsageError("name one run, or log files after --log", "hpc-launch why @last, hpc-launch why --log FILE")
    index = user_index(os.environ)
    try:
        folder = find_run(name, index)
    except UsageError as error:
        if not os.path.isfile(name):
            raise
        import shlex

        hint = f"to diagnose a log file, run `hpc-launch why --log {shlex.quote(name)}`"
        raise UsageError(str(error), hint) from None
    status = poll_runs([folder], index)[0]
    for problem in notify_problems(folder):
        print_note(problem)
    attempts = folder.attempts()
    if not attempts:
        raise UsageError(f"{folder.name} has no attempt yet", f"run `hpc-launch status {folder.name}` to see its state")
    if number is not None and number not in {attempt.number for attempt in attempts}:
        raise UsageError(f"{folder.name} has no attempt {number}", f"the newest is attempt {attempts[-1].number}")
    attempt = folder.attempt(number or attempts[-1].number)
    findings: list[Finding] = []
    rules = rulebook(findings)
    warn(findings)
    diagnosis = diagnose_attempt(attempt, rules)
    newest = attempt.number == attempts[-1].number
    alive = status.state in (*ALIVE, "STUCK") and newest and diagnosis.failure_class == "unknown"
    report = None
    if alive or diagnosis.failure_class == "success":
        start = startup_text(status, time.time()) if alive else ""
        progress = (*([start] if start else []), *progress_parts(status))
        report = PerformanceReport(status.state if alive else None, status.reason, progress, attempt_remarks(attempt))
    times = run_times(status, time.time())
    spent = times.account, interval_of(status, times, index)
    return diagnosis, _verdict(diagnosis, attempt), {"": str(attempt.path)}, report, spent
