"""`why`: what ended a run, or a job of anybody by its log files."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, cast

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.shared_options import echo_json, json_option

if TYPE_CHECKING:
    from hpc_launch.recover.diagnosis import Action, Diagnosis, Verdict
    from hpc_launch.run.layout import AttemptFolder
    from hpc_launch.view.diagnosis_text import AttemptProgress

FAILED = 1
ALIVE = frozenset({"SUBMITTING", "PENDING", "STARTING", "RUNNING", "ENDING"})


@click.command("why")
@click.argument("run", required=False, metavar="[RUN]", shell_complete=complete_run)
@click.option("--log", "logs", metavar="FILE", multiple=True, help="A log of any job instead of a run; - is stdin.")
@click.option("--attempt", "number", type=click.IntRange(min=1), metavar="K", help="This attempt, not the newest.")
@click.argument("more", nargs=-1, metavar="[FILE...]", type=click.UNPROCESSED)
@json_option
def command(run: str | None, logs: tuple[str, ...], number: int | None, more: tuple[str, ...], as_json: bool) -> int:
    """Say what ended a run: the class of the root cause, who failed first, the lines that show it, and what to do.

    Of one that runs, or ran well, it says what may make it slow: a node behind the others, sockets in place of the fast
    network, NVLink unused, throttled clocks, a loader that starves, small buckets.

    With --log it reads log files instead, of any job; several files are taken for parts of one job. Ends with 0 for a
    success and for a run that goes on, with 1 where a failure was found or nothing explains the end.

    \b
    hpc-launch why @last
    hpc-launch why tiny-gpt --attempt 2 --json
    hpc-launch why --log slurm-4711.out
    hpc-launch why --log node0.err node1.err
    """
    going: AttemptProgress | None = None
    if logs:
        files: dict[str, str] = {}
        diagnosis = _of_files([*logs, *([run] if run else []), *more])
        verdict = _verdict(diagnosis, None)
    else:
        diagnosis, verdict, files, going = _of_run(run, more, number)
    if as_json:
        from hpc_launch.view.diagnosis_text import diagnosis_json

        echo_json(diagnosis_json(diagnosis, verdict, going))
    else:
        from hpc_launch.view.diagnosis_text import diagnosis_lines
        from hpc_launch.view.terminal import wants_colour, write_lines

        write_lines(diagnosis_lines(diagnosis, verdict, files, going, colour=wants_colour(sys.stdout)))
    goes_on = going is not None and going.state is not None
    return 0 if goes_on or diagnosis.failure_class == "success" else FAILED


def _of_files(names: list[str]) -> Diagnosis:
    """Any log files. Raises UsageError for one that cannot be read."""
    from hpc_launch.base.errors import UsageError
    from hpc_launch.base.findings import Finding
    from hpc_launch.cli.warn import warn
    from hpc_launch.run.diagnosis.any_log import diagnose_files
    from hpc_launch.run.diagnosis.rule_files import rulebook

    findings: list[Finding] = []
    rules = rulebook(findings)
    warn(findings)
    try:
        return diagnose_files(names, rules, sys.stdin.buffer)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}", "check the name of the log") from None


def _verdict(diagnosis: Diagnosis, attempt: AttemptFolder | None) -> Verdict:
    """The verdict on record, or the default of the diagnosis, with advice for a person as its reason."""
    from hpc_launch.base.files import read_json
    from hpc_launch.recover.diagnosis import Verdict
    from hpc_launch.recover.retry_policy import default_action
    from hpc_launch.run.records.verdict_record import decided_of

    default = default_action(diagnosis)
    stored = decided_of(read_json(attempt.verdict)) if attempt is not None else None
    if stored is None or stored.action == default:
        return Verdict(default, diagnosis.advice)
    # The advice may be to try again, which is just what the verdict rules out.
    cure = f". What would help: {diagnosis.advice}" if diagnosis.advice else ""
    return Verdict(cast("Action", stored.action), f"{stored.reason}{cure}")


def _of_run(
    name: str | None, more: tuple[str, ...], number: int | None
) -> tuple[Diagnosis, Verdict, dict[str, str], AttemptProgress | None]:
    """The newest attempt of a run, or the one asked for, and how it goes where nothing went wrong."""
    from hpc_launch.base.errors import UsageError
    from hpc_launch.base.findings import Finding
    from hpc_launch.cli.follow import poll_runs
    from hpc_launch.cli.warn import warn
    from hpc_launch.performance.attempt_speed import attempt_remarks
    from hpc_launch.run.diagnosis.collect_evidence import diagnose_attempt
    from hpc_launch.run.diagnosis.rule_files import rulebook
    from hpc_launch.run.find_run import find_run
    from hpc_launch.run.run_index import user_index
    from hpc_launch.view.diagnosis_text import AttemptProgress
    from hpc_launch.view.state_text import progress_parts

    if name is None or more:
        raise UsageError("name one run, or files behind --log", "hpc-launch why @last, hpc-launch why --log FILE")
    index = user_index(os.environ)
    try:
        folder = find_run(name, index)
    except UsageError as error:
        if not os.path.isfile(name):
            raise
        import shlex

        log = f"a log is read with `hpc-launch why --log {shlex.quote(name)}`"
        raise UsageError(str(error), log) from None
    status = poll_runs([folder], index)[0]
    attempts = folder.attempts()
    if not attempts:
        raise UsageError(f"{folder.name} has no attempt yet", "hpc-launch status says how it stands")
    if number is not None and number not in {attempt.number for attempt in attempts}:
        raise UsageError(f"{folder.name} has no attempt {number}", f"its newest is {attempts[-1].number}")
    attempt = folder.attempt(number or attempts[-1].number)
    findings: list[Finding] = []
    rules = rulebook(findings)
    warn(findings)
    diagnosis = diagnose_attempt(folder, attempt, rules=rules)
    alive = status.state in ALIVE and attempt.number == attempts[-1].number and diagnosis.failure_class == "unknown"
    going = None
    if alive or diagnosis.failure_class == "success":
        going = AttemptProgress(
            status.state if alive else None, status.reason, tuple(progress_parts(status)), attempt_remarks(attempt)
        )
    return diagnosis, _verdict(diagnosis, attempt), {"": str(attempt.path)}, going
