"""`submit`, `run`, `resubmit` and `cancel`: start and end runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_launch.cli.shared_options import complete_run, echo_answer, json_option, of_a_job, set_option, yes_option
from hpc_launch.cli.terminal import TERMINAL, print_note
from hpc_launch.job.units import counted

if TYPE_CHECKING:
    from hpc_launch.service.check import CheckedFile

MOST_SHOWN = 50
"""Points that `--dry-run` lists."""


@click.command("submit")
@of_a_job
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for a scheduler that does not answer, and follow the run to its end; exit with 0 only if it COMPLETED. "
    "On hosts without Slurm, the run ends if this command is killed.",
)
@click.option("--dry-run", is_flag=True, help="Write and print the script without submitting it.")
@click.option("--test-only", is_flag=True, help="Ask the scheduler when the job would start, without submitting it.")
@yes_option("Submit without asking, whatever it costs (`confirm_gpu_hours`).")
@json_option
def submit_command(
    job: Path,
    site: str | None,
    sets: tuple[str, ...],
    wait: bool,
    dry_run: bool,
    test_only: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Submit a training job: check it, write its script, pass it to the scheduler and print the run's name.

    A job file with `sweep:` becomes a run for each point, submitted as job arrays. One with `jobs:` is a pipeline: each
    stage is submitted when those that it waits for are over.

    \b
    hpc-launch submit job.yaml --site mycluster
    hpc-launch submit job.yaml --set nodes=4 --set args.lr=0.001 --wait
    """
    if test_only or dry_run:
        from hpc_launch.service.check import check_file

        checked = check_file(job, site=site, sets=sets, listener=TERMINAL)
        if dry_run and not test_only:
            return _dry_run(job, checked, as_json=as_json)
        if checked.stages is not None:
            raise click.UsageError(f"--test-only needs one job: {job}/STAGE")
        from hpc_launch.prepare.attempts import start_estimate
        from hpc_launch.schedulers.scheduler import scheduler_for

        plan = checked.first.plan
        with TERMINAL.doing("waiting for the scheduler's estimate"):
            answer = start_estimate(checked.first, scheduler_for(plan.submitted_to, plan.cluster))
        echo_answer({"estimate": answer}, [answer], as_json=as_json)
        return 0
    from hpc_launch.api.job_calls import submit
    from hpc_launch.cli.follow import after_submission

    run = submit(job, site=site, set=sets, keep_trying=wait, confirmed=yes, listener=TERMINAL)
    return after_submission(run, wait=wait, as_json=as_json)


def _dry_run(job: Path, checked: CheckedFile, *, as_json: bool) -> int:
    """Show what a submission would do: the script, and the points or stages."""
    from hpc_launch.service.check import write_dry_run

    answer: dict[str, Any] = dict.fromkeys(("run", "job_id", "script", "folder"))
    if checked.stages is not None:
        from hpc_launch.view.run_table import stage_lines

        answer["stages"] = dict.fromkeys(one.name for one in checked.stages.stages)
        note = f"dry run: not submitted; hpc-launch render {job}/STAGE prints a script"
        echo_answer(answer, stage_lines(checked.stages.stages, checked.stages.points), note, as_json=as_json)
        return 0
    path = write_dry_run(checked.first)
    answer["script"] = str(path)
    if checked.sweep is not None:
        values = [dict(point.values) for point in checked.sweep.points]
        answer |= {"points": len(values), "values": values}
    echo_answer(answer, checked.first.script.removesuffix("\n").split("\n"), as_json=as_json)
    if as_json:
        return 0
    if checked.sweep is None:
        print_note(f"dry run: not submitted; script written to {path}")
        return 0
    from hpc_launch.view.format_values import aligned
    from hpc_launch.view.run_table import point_rows

    points = checked.sweep.points
    for line in aligned(point_rows(points[:MOST_SHOWN]), empty=False):
        print_note(line)
    omitted = f" ({len(points) - MOST_SHOWN} more than shown)" if len(points) > MOST_SHOWN else ""
    size = counted(len(points), "point") + omitted
    print_note(f"dry run: {size}, not submitted; the script of point 0 is above and in {path}")
    return 0


@click.command("run")
@of_a_job
@json_option
def run_command(job: Path, site: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Run a job inside the current Slurm allocation (salloc) and follow it to its end.

    Script, run folder and logs are the same as with `submit`, but nothing is queued. The allocation must have the
    number of nodes that the job requests.

    \b
    salloc --nodes=2 --gpus-per-node=4 --time=1:00:00
    hpc-launch run job.yaml --site mycluster
    """
    from hpc_launch.api.job_calls import run
    from hpc_launch.cli.follow import after_submission

    return after_submission(run(job, site=site, set=sets, listener=TERMINAL), wait=True, as_json=as_json)


@click.command("resubmit")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@set_option
@click.option("--exclude", "excluded", multiple=True, metavar="NODES", help="Nodes to exclude, as n3 or n[3-5].")
@click.option("--wait", is_flag=True, help="Follow the run to its end.")
@yes_option("Do not ask before repeating a run that COMPLETED.")
@json_option
def resubmit_command(
    run: str, sets: tuple[str, ...], excluded: tuple[str, ...], wait: bool, yes: bool, as_json: bool
) -> int:
    """Submit the next attempt of a run, from the job file and site profile stored in its folder.

    Asks before repeating a run that COMPLETED; without a terminal that requires --yes. Of a sweep, the points, and of a
    pipeline, the stages that failed or were cancelled are submitted again, and what comes after them.

    \b
    hpc-launch resubmit @last --exclude n3
    hpc-launch resubmit tiny-gpt --set time=04:00:00 --wait
    """
    from hpc_launch.api.run_calls import find
    from hpc_launch.cli.follow import after_submission

    found = find(run, listener=TERMINAL)
    again = found.resubmit(set=sets, exclude=excluded, keep_trying=wait, confirmed=yes)
    return after_submission(again, wait=wait, as_json=as_json)


@click.command("cancel")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_run)
@json_option
def cancel_command(runs: tuple[str, ...], as_json: bool) -> int:
    """Cancel runs. Pending and running jobs are cancelled; a job that is still being submitted exits without training.

    Prints a line for each run, and goes on with the others where one cannot be cancelled; the exit code is then the
    highest of all. Cancelling a finished run is not an error.

    \b
    hpc-launch cancel @last
    hpc-launch cancel tiny-gpt-250312 12345
    """
    from hpc_launch.api.run_calls import find
    from hpc_launch.base.errors import UserError
    from hpc_launch.view.format_values import clean

    # Resolve all names first: a misspelt one must not leave the work half done.
    found = dict.fromkeys(find(run, listener=TERMINAL) for run in runs)
    code = 0
    cancelled: list[dict[str, str]] = []
    for run in found:
        try:
            message = "\n".join(map(clean, run.cancel().splitlines()))
        except UserError as error:
            TERMINAL.fail(error)
            code = max(code, error.exit_code)
            if not as_json:
                click.echo(f"{run.name}: not cancelled")
            continue
        cancelled.append({"run": run.name, "message": message})
        if not as_json:
            click.echo(message)
    echo_answer(cancelled, [], as_json=as_json)
    return code
