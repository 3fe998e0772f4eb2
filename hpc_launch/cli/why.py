"""`why`, `report` and `logs`: what a run did, and why it failed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_launch.base.errors import UsageError
from hpc_launch.cli.shared_options import complete_run, echo_json, json_option, output_option
from hpc_launch.cli.terminal import INTERRUPTED, TERMINAL, print_note, write_text
from hpc_launch.performance.measured_pace import interval_of
from hpc_launch.performance.run_times import run_times
from hpc_launch.runs.find_run import find_run
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.rank_logs import follow
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.run_index import Index, user_index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.wait_for_end import Confirmation, over
from hpc_launch.schedulers.scheduler import ENDED_STATES
from hpc_launch.service.poll import poll_runs, tracker_of
from hpc_launch.view.diagnosis_text import PerformanceReport, diagnosis_json, diagnosis_lines
from hpc_launch.view.run_details import Printer, choose_node
from hpc_launch.view.state_text import (
    detach_message,
    interval_json,
    interval_text,
    one_line,
    progress_parts,
    startup_text,
    time_json,
    why_lines,
)
from hpc_launch.view.terminal import wants_colour, write_lines

if TYPE_CHECKING:
    from hpc_launch.runs.status.tracker import RunTracker
    from hpc_launch.service.diagnose import RunDiagnosis

FAILED = 1

attempt_option = click.option(
    "--attempt", "number", type=click.IntRange(min=1), metavar="K", help="Attempt number (default: the newest)."
)


@click.command("why")
@click.argument("run", required=False, metavar="[RUN]", shell_complete=complete_run)
@click.option(
    "--log",
    "logs",
    metavar="FILE",
    multiple=True,
    help="Diagnose log files of any job instead of a run; - is stdin. Repeatable.",
)
@attempt_option
@click.argument("more", nargs=-1, metavar="[FILE...]", type=click.UNPROCESSED)
@json_option
def why_command(
    run: str | None, logs: tuple[str, ...], number: int | None, more: tuple[str, ...], as_json: bool
) -> int:
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
    found, report, times = None, None, {}
    if logs:
        from hpc_launch.service.diagnose import diagnose_logs, verdict_on

        diagnosis = diagnose_logs([*logs, *([run] if run else []), *more], sys.stdin.buffer, TERMINAL)
        verdict = verdict_on(diagnosis)
    else:
        found = _of_run(run, more, number)
        diagnosis, verdict, report = found.diagnosis, found.verdict, _report(found)
        times = {**time_json(found.account), "checkpoint_interval": interval_json(found.interval)}
    if as_json:
        echo_json({**diagnosis_json(diagnosis, verdict, report), **times})
    else:
        lines = diagnosis_lines(diagnosis, verdict, report, colour=wants_colour(sys.stdout))
        write_lines(lines + (why_lines(found.account, found.interval) if found is not None else []))
    active = report is not None and report.state is not None and report.state != "STUCK"
    return 0 if active or diagnosis.failure_class == "success" else FAILED


def _of_run(name: str | None, more: tuple[str, ...], number: int | None) -> RunDiagnosis:
    from hpc_launch.service.diagnose import diagnose_run

    if name is None or more:
        raise UsageError("name one run, or log files after --log", "hpc-launch why @last, hpc-launch why --log FILE")
    return diagnose_run(name, user_index(os.environ), TERMINAL, number=number)


def _report(found: RunDiagnosis) -> PerformanceReport | None:
    """The report on an attempt that runs or succeeded."""
    if not found.alive and found.diagnosis.failure_class != "success":
        return None
    status = found.status
    start = startup_text(status, time.time()) if found.alive else ""
    progress = (*([start] if start else []), *progress_parts(status))
    return PerformanceReport(status.state if found.alive else None, status.reason, progress, found.remarks)


@click.command("report")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@output_option
def report_command(run: str, output: Path | None) -> None:
    """Write a run as one HTML page that needs no other file and no network.

    The page shows the attempts on a time axis, where the time went, loss and throughput over all attempts, nodes and
    verdicts with their evidence, and the script with the origin of each value.

    \b
    hpc-launch report @last -o run.html
    """
    from hpc_launch.report.run_page import RunReport, run_page

    index = user_index(os.environ)
    (status,) = poll_runs([find_run(run, index)], index, TERMINAL)
    now = time.time()
    times = run_times(status, now)
    interval = interval_of(status, times, index)
    notes = (f"Checkpoints: {interval_text(interval)}.",) if interval is not None else ()
    page = run_page(RunReport(status, times, now, notes))
    write_text(output, page)


POLL_S = 1.0
"""Seconds between two queries of the run's state while following its output."""


@click.command("logs")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the output until the run ends.")
@click.option("--node", metavar="N", help="Only this node, by index (from 0) or name.")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Only lines of this rank.")
@click.option("--role", metavar="NAME", help="Only this role of the job; server.1 is a replica.")
@attempt_option
def logs_command(
    run: str, following: bool, node: str | None, rank: int | None, role: str | None, number: int | None
) -> int:
    """Print the output of a run: the batch script's, then each node's.

    Lines are prefixed with their origin unless --node or --rank is given. Escape sequences are removed.

    \b
    hpc-launch logs @last
    hpc-launch logs tiny-gpt -f --rank 0
    hpc-launch logs 12345 --node n3 --attempt 1
    """
    index = user_index(os.environ)
    folder = find_run(run, index)
    attempts = folder.attempts()
    newest = attempts[-1].number if attempts else 1
    if number is not None and number not in {attempt.number for attempt in attempts}:
        raise UsageError(f"{folder.name} has no attempt {number}", f"the newest is attempt {newest}")
    attempt = folder.attempt(number or newest)
    if role is not None:
        states = Reader().read(attempt).roles
        names = [one.name for one in states.roles] if states is not None else []
        if role not in names:
            raise UsageError(f"attempt {attempt.number} has no role {role}", f"its roles: {', '.join(names) or 'none'}")
        attempt = attempt.role(role)
    chosen = choose_node(node, attempt) if node is not None else None
    printer = Printer(sys.stdout, one_node=chosen is not None, one_rank=rank is not None)
    if following:
        return _follow(folder, index, printer, node=chosen, rank=rank, role=role, number=number)
    for line in follow(attempt, node=chosen, rank=rank):
        printer.show(line)
    printer.flush()
    if not printer.lines:
        print_note(f"attempt {attempt.number} of {folder.name} has no matching output")
    return 0


def _follow(
    run: RunFolder,
    index: Index,
    printer: Printer,
    *,
    node: int | None,
    rank: int | None,
    role: str | None,
    number: int | None,
) -> int:
    """Follow the output until the run ends; with `number`, until that attempt ends."""

    def sleep(seconds: float) -> None:
        printer.flush()
        time.sleep(seconds)

    attempts = run.attempts()
    current = number or (attempts[-1].number if attempts else 1)
    over = _OutputComplete(tracker_of([run], index), run, printer)
    try:
        while True:
            over.look_at(current, alone=number is not None)
            attempt = run.attempt(current) if role is None else run.attempt(current).role(role)
            for line in follow(attempt, over, node=node, rank=rank, sleep=sleep):
                printer.show(line)
            printer.flush()
            if number is not None or over.run_is_over:
                break
            current += 1
            print_note(f"attempt {current}")
    except KeyboardInterrupt:
        click.echo(detach_message([run.name]), err=True)
        return INTERRUPTED
    if over.status is not None:
        click.echo(one_line(over.status), err=True)
    return 0


class _OutputComplete:
    """Whether an attempt will write no more output. Until there is output, prints state changes on stderr."""

    def __init__(self, tracker: RunTracker, run: RunFolder, printer: Printer) -> None:
        self.status: RunStatus | None = None
        self._confirmation = Confirmation()
        self.run_is_over = False
        self._tracker = tracker
        self._run = run
        self._printer = printer
        self._attempt = 1
        self._alone = False
        self._looked = 0.0
        self._said = ""

    def look_at(self, attempt: int, *, alone: bool) -> None:
        """Switch to this attempt; with `alone`, ignore later attempts."""
        self._attempt, self._alone = attempt, alone

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._looked >= POLL_S:
            self._looked = now
            self.status = self._tracker.poll(background=True)[self._run.name]
            self._say(self.status)
            self.run_is_over = over(self.status, self._tracker, self._run, self._confirmation)
        if self.status is None or self.run_is_over:
            return self.run_is_over
        later = any(attempt.number > self._attempt for attempt in self.status.attempts)
        return later or (self._alone and self._has_ended(self.status))

    def _has_ended(self, status: RunStatus) -> bool:
        ended = ENDED_STATES | {"VOID", "REQUEUED"}
        return any(attempt.number == self._attempt and attempt.state in ended for attempt in status.attempts)

    def _say(self, status: RunStatus) -> None:
        if self._printer.lines or status.state == self._said or status.final:
            return
        self._said = status.state
        print_note(f"no output yet: {one_line(status)}")
