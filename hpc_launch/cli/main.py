"""The command: a group whose verbs are loaded when they are called, and the one place where errors meet the user."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from hpc_launch import __version__
from hpc_launch.cli.lazy_group import LazyGroup

VERBS = {
    "submit": "submit a job, and follow it with --wait",
    "run": "run a job inside an allocation that one already has",
    "resubmit": "make the next attempt of a run",
    "cancel": "end runs",
    "drill": "a short job that is warned before its end: is the training ready for it?",
    "status": "the state of a run, with its source and age",
    "list": "all runs, finished ones too",
    "logs": "the output of a run, by node and rank",
    "why": "what ended a run, or any job by its logs",
    "watch": "follow runs live",
    "render": "the script of a job, without submitting it",
    "explain": "where each value of a job comes from",
    "nodes": "the ledger of nodes that runs found to be bad",
    "config": "files and flags of strategies: DeepSpeed, FSDP, Megatron, hostfile, scripts",
    "containers": "build and pull images, and check one before a job is queued with it",
    "sites": "the profiles of clusters: show, compare, check, share",
    "validate": "all faults of job files",
    "completion": "shell completion",
}


class Verbs(LazyGroup):
    """The verbs. Whoever reads our output may go (`| head`): that is no fault, and click would end with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


def _load(verb: str) -> click.Command:
    module = importlib.import_module(f"hpc_launch.cli.{'list_' if verb == 'list' else verb}")
    command: click.Command = module.command
    return command


@click.group(
    cls=Verbs,
    about=VERBS,
    load=_load,
    title="Verbs",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the run failed or is stuck, 2 usage, 3 refused before submission, 4 the scheduler "
    "refused or cannot be reached, 5 a fault of ours, 130 interrupted.",
)
@click.version_option(__version__, prog_name="hpc-launch")
def group() -> None:
    """Take a training job from one YAML file to a finished run, on any Slurm cluster or this machine.

    \b
    hpc-launch submit job.yaml --site local --wait
    hpc-launch status @last
    """


def main() -> None:
    """The entry point of the console script."""
    from hpc_launch.cli.error_handler import run_guarded

    sys.exit(run_guarded(group))


if __name__ == "__main__":
    main()
