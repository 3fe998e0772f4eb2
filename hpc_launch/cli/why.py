"""`why`: explain why a run failed, or any job from its log files."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.cli.terminal import TERMINAL

if TYPE_CHECKING:
    from hpc_launch.service.diagnose import RunDiagnosis
    from hpc_launch.view.diagnosis_text import PerformanceReport

FAILED = 1


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
    from hpc_launch.view.diagnosis_text import diagnosis_json, diagnosis_lines
    from hpc_launch.view.terminal import wants_colour, write_lines
    from hpc_launch.view.time_text import interval_json, time_json, why_lines

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
        files = {"": str(found.attempt.path)} if found is not None else {}
        lines = diagnosis_lines(diagnosis, verdict, files, report, colour=wants_colour(sys.stdout))
        write_lines(lines + (why_lines(found.account, found.interval) if found is not None else []))
    active = report is not None and report.state is not None and report.state != "STUCK"
    return 0 if active or diagnosis.failure_class == "success" else FAILED


def _of_run(name: str | None, more: tuple[str, ...], number: int | None) -> RunDiagnosis:
    from hpc_launch.base.errors import UsageError
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.service.diagnose import diagnose_run

    if name is None or more:
        raise UsageError("name one run, or log files after --log", "hpc-launch why @last, hpc-launch why --log FILE")
    return diagnose_run(name, user_index(os.environ), TERMINAL, number=number)


def _report(found: RunDiagnosis) -> PerformanceReport | None:
    """The report on an attempt that runs or succeeded."""
    from hpc_launch.view.diagnosis_text import PerformanceReport
    from hpc_launch.view.state_text import progress_parts, startup_text

    if not found.alive and found.diagnosis.failure_class != "success":
        return None
    status = found.status
    start = startup_text(status, time.time()) if found.alive else ""
    progress = (*([start] if start else []), *progress_parts(status))
    return PerformanceReport(status.state if found.alive else None, status.reason, progress, found.remarks)
