"""The state of pipelines: each is polled by its runs, and what is due is submitted."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from hpc_launch.cli.poll_sweeps import poll_groups
from hpc_launch.cli.shared_options import echo_json
from hpc_launch.job.shell_text import visible
from hpc_launch.retry.driver_outcome import DriverOutcome
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.pipelines.pipeline_folder import PipelineFolder, as_pipeline, pipeline_of
from hpc_launch.runs.pipelines.pipeline_status import PipelineStatus, pipeline_status
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.sweeps.sweep_status import SweepStatus

MOST_ROUNDS = 20
"""How often what is due is submitted at once: a stage may be due as soon as another one is refused."""


def poll_with_groups(runs: Sequence[RunFolder], index: Index, *, drive: bool) -> list[RunStatus]:
    """The statuses of runs of which some are sweeps, pipelines, or parts of them."""
    homes = [as_pipeline(run) or pipeline_of(run) for run in runs]
    pipelines = {home.name: home for home in homes if home is not None}
    others = [run for run in runs if run.name not in pipelines]
    found, statuses = _poll(list(pipelines.values()), others, index, drive=drive)
    whole: dict[str, RunStatus | SweepStatus | PipelineStatus] = {**found, **statuses}
    result = [one if isinstance(one := whole[run.name], RunStatus) else one.as_run() for run in runs]
    index.seen(result)
    return result


def poll_pipeline(pipeline: PipelineFolder, index: Index, *, drive: bool = True) -> PipelineStatus:
    """The state of one pipeline."""
    return _poll([pipeline], [], index, drive=drive)[1][pipeline.name]


def show_pipeline(pipeline: PipelineFolder, index: Index, *, as_json: bool) -> None:
    """`status PIPELINE`: a table of its stages."""
    status = poll_pipeline(pipeline, index)
    if as_json:
        echo_json(status.as_json())
        return
    from hpc_launch.view.pipeline_table import pipeline_lines
    from hpc_launch.view.terminal import write_lines

    write_lines(pipeline_lines(status), sys.stdout)


def _poll(
    pipelines: Sequence[PipelineFolder], others: Sequence[RunFolder], index: Index, *, drive: bool
) -> tuple[dict[str, RunStatus | SweepStatus], dict[str, PipelineStatus]]:
    found: dict[str, RunStatus | SweepStatus] = {}
    stamps: dict[str, int | None] = {}
    for _ in range(MOST_ROUNDS):
        stamps = {one.name: one.run.attempts_stamp() for one in pipelines}
        runs = {run.name: run for run in [*others, *(run for one in pipelines for run in one.stage_runs())]}
        found = poll_groups(list(runs.values()), index, drive=drive)
        outcomes = [outcome for one in pipelines for outcome in _advance(one, found, index)] if drive else []
        for outcome in outcomes:
            click.echo(visible(outcome.words), err=True)
        if not any(outcome.kind in ("submitted", "ended") for outcome in outcomes):
            break
    return found, {one.name: pipeline_status(one, found, stamps.get(one.name)) for one in pipelines}


def _advance(pipeline: PipelineFolder, found: dict[str, RunStatus | SweepStatus], index: Index) -> list[DriverOutcome]:
    """Submit what is due of a pipeline."""
    from hpc_launch.retry.advance_pipeline import advance_pipeline
    from hpc_launch.retry.drivers import Schedulers

    if not pipeline_status(pipeline, found).may_be_due:
        return []
    return advance_pipeline(pipeline, found, Schedulers().of, index)
