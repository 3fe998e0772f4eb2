"""`cancel`: cancel runs, in any state."""

from __future__ import annotations

import os

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index


@click.command("cancel")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_run)
@json_option
def command(runs: tuple[str, ...], as_json: bool) -> int:
    """Cancel runs. Pending and running jobs are cancelled; a job that is still being submitted exits without training.

    Cancelling a finished run is not an error.

    \b
    hpc-launch cancel @last
    hpc-launch cancel tiny-gpt-250312 12345
    """
    from hpc_launch.base.errors import UserError
    from hpc_launch.cli.error_handler import print_error
    from hpc_launch.runs.find_run import find_run
    from hpc_launch.runs.run_index import user_index

    index = user_index(os.environ)
    # Resolve all names first: a misspelt one must not leave the work half done.
    folders = {folder.path: folder for folder in (find_run(run, index, stages=True) for run in runs)}
    code = 0
    cancelled: list[dict[str, str]] = []
    for folder in folders.values():
        try:
            message = _cancel(folder, index)
        except UserError as error:
            print_error(error)
            code = error.exit_code
            continue
        cancelled.append({"run": folder.name, "message": message})
        if not as_json:
            click.echo(message)
    if as_json:
        echo_json(cancelled)
    return code


def _cancel(run: RunFolder, index: Index) -> str:
    """Cancel one run and describe the outcome. Raises Unreachable; UsageError if the folder is not a run's."""
    from hpc_launch.cli.follow import poll_runs
    from hpc_launch.cli.submit_pipeline import cancel_pipeline, cancel_stage
    from hpc_launch.retry.drivers import Schedulers
    from hpc_launch.runs.pipelines.pipeline_folder import as_pipeline
    from hpc_launch.runs.records.attempt_files import Reader
    from hpc_launch.runs.records.scheduler_state import MAY_COME_BACK
    from hpc_launch.runs.submitting.cancel_run import cancel_run
    from hpc_launch.view.format_values import clean

    name = clean(run.name)
    pipeline = as_pipeline(run)
    if pipeline is not None:
        return cancel_pipeline(pipeline, index, _cancel)
    if not run.exists and run.pipeline is not None:
        return cancel_stage(run, index, _cancel)
    if os.path.exists(run.sweep_info):
        from hpc_launch.runs.sweeps.cancel_sweep import cancel_sweep
        from hpc_launch.runs.sweeps.sweep_folder import SweepFolder

        ended = cancel_sweep(SweepFolder(run), Schedulers().of(run))
        return f"{name}: cancelled job {', '.join(map(clean, ended))}" if ended else f"{name}: no job to cancel"
    (before,) = poll_runs([run], index, drive=False)
    # Another attempt may follow a failure that has no verdict yet, and a requeue may follow a lost node.
    open_end = before.state == "FAILED" and before.undecided
    if before.final and not open_end and not any(one.state in MAY_COME_BACK for one in before.attempts[-1:]):
        return f"{name} is already over: {before.state}"
    cancelled = cancel_run(run, Schedulers().of(run), undecided=open_end)
    if cancelled:
        return f"{name}: cancelled job {', '.join(map(clean, cancelled))}"
    (after,) = poll_runs([run], index, drive=False)
    if after.state == "SUBMITTING":
        return f"{name} is still being submitted and cannot be cancelled yet; try again"
    files = [Reader().read(attempt) for attempt in run.attempts()[-1:]]
    if any(one.void and one.job_id and one.cancel is not None and one.cancel.sent is None for one in files):
        return (
            f"{name}: CANCELLED; the scheduler does not answer, so job {clean(after.job_id)} may stay in the queue; "
            "it exits without training, and the next `hpc-launch list` removes it"
        )
    return f"{name}: {after.state}, no job to cancel"
