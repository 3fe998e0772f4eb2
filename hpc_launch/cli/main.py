"""The `hpc-launch` command: a group that imports each verb when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from hpc_launch import __version__
from hpc_launch.cli.shared_options import LazyGroup

VERBS = {
    "init": "write a job file for a training, or from an sbatch script",
    "submit": "submit a job; --wait follows it to its end",
    "run": "run a job inside an existing allocation",
    "resubmit": "start the next attempt of a run",
    "cancel": "cancel runs",
    "doctor": "check a job on every level before it waits in a queue",
    "drill": "test that a training checkpoints and resumes when warned",
    "status": "show the state of a run, with its source and age",
    "list": "list all runs, including finished ones",
    "logs": "print the output of a run, by node and rank",
    "why": "explain why a run failed, or any job from its logs",
    "report": "write a run as an HTML page",
    "watch": "follow runs live",
    "render": "print the script of a job without submitting it",
    "explain": "show where each value of a job is set",
    "nodes": "show and clear the nodes recorded as bad",
    "config": "write DeepSpeed, FSDP and Megatron configurations, hostfiles and scripts",
    "containers": "build, pull and check container images",
    "sites": "show, compare, check and share site profiles",
    "notify": "send a test message to those who get a job's messages",
    "plan": "show layout, memory per GPU, walltime and cost of a job",
    "validate": "check job files and report every error",
    "completion": "print the shell completion script",
}


class Verbs(LazyGroup):
    """The group of verbs. A closed output pipe (`| head`) is not an error here; click alone would exit with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


MODULES = {
    **dict.fromkeys(("submit", "run", "resubmit", "cancel"), "submit"),
    **dict.fromkeys(("status", "list", "watch"), "status"),
    **dict.fromkeys(("render", "explain", "validate"), "render"),
    **dict.fromkeys(("why", "report", "logs"), "why"),
    **dict.fromkeys(("doctor", "drill", "notify"), "doctor"),
    "completion": "shared_options",
}
"""The modules with several verbs, where each is called `VERB_command`. Others have the name of their verb."""


def _load(verb: str) -> click.Command:
    module = importlib.import_module(f"hpc_launch.cli.{MODULES.get(verb, verb)}")
    command: click.Command = getattr(module, f"{verb}_command" if verb in MODULES else "command")
    return command


@click.group(
    cls=Verbs,
    about=VERBS,
    load=_load,
    title="Verbs",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 the run failed or is stuck, 2 usage error, 3 rejected before submission, "
    "4 the scheduler rejected the job or is unreachable, 5 internal error, 130 interrupted.",
)
@click.version_option(__version__, prog_name="hpc-launch")
def group() -> None:
    """Launch training jobs on any Slurm cluster, or on this machine, from one YAML file.

    \b
    hpc-launch submit job.yaml --site local --wait
    hpc-launch status @last
    """


def main() -> None:
    """Entry point of the console script."""
    from hpc_launch.cli.terminal import run_guarded

    sys.exit(run_guarded(group))


if __name__ == "__main__":
    main()
