"""The `hpc-launch` command: a group that imports each verb when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from hpc_launch import __version__
from hpc_launch.cli.shared_options import LazyGroup, common_options, on_clusters

SECTIONS = {
    "Start": {
        "init": "write a job file for a training, or from an sbatch script",
        "validate": "check job files and report every error",
        "plan": "show layout, memory per GPU, walltime and cost of a job",
        "doctor": "check a job on every level before it waits in a queue",
        "drill": "test that a training checkpoints and resumes when warned",
        "notify": "send a test message to those who get a job's messages",
        "config": "write DeepSpeed, FSDP and Megatron configurations, hostfiles and scripts",
    },
    "Run": {
        "submit": "submit a job; --wait follows it to its end",
        "run": "run a job inside an existing allocation",
        "resubmit": "start the next attempt of a run",
        "cancel": "cancel runs",
    },
    "Follow": {
        "status": "show the state of a run, with its source and age",
        "list": "list all runs, including finished ones",
        "watch": "follow runs live",
        "logs": "print the output of a run, by node and rank",
    },
    "Understand": {
        "why": "explain why a run failed, or any job from its logs",
        "stacks": "show where each rank of a run is now",
        "shell": "open a shell where a run runs, or with the resources of a job",
        "report": "write a run as an HTML page",
        "explain": "show where each value of a job is set, or what a code means",
        "docs": "print a page of the manual, or what a few words find in it",
        "render": "print the script of a job without submitting it",
    },
    "Share": {
        "sites": "show, compare, check and share site profiles",
        "containers": "build, pull and check container images",
        "clusters": "use clusters from a machine without Slurm",
    },
    "Administer": {
        "prune": "delete what old runs hold: code, logs, checkpoints",
        "nodes": "show and clear the nodes recorded as bad",
        "mcp": "serve assistants over the Model Context Protocol",
        "completion": "print the shell completion script",
    },
}
"""The verbs as the help groups them."""
VERBS = {verb: text for section in SECTIONS.values() for verb, text in section.items()}


class Verbs(LazyGroup):
    """The group of verbs. A closed output pipe (`| head`) is not an error here; click alone would exit with 1."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return None if command is None else on_clusters(command)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Documentation"):
            formatter.write("  hpc-launch docs [WORDS]    print a page, or the section that the words find\n")
            formatter.write("  hpc-launch explain HL201   print what the code of a finding means\n")
        super().format_epilog(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


MODULES = {
    **dict.fromkeys(("submit", "run", "resubmit", "cancel"), "submit"),
    **dict.fromkeys(("status", "list", "watch"), "status"),
    **dict.fromkeys(("render", "explain", "validate", "plan"), "render"),
    **dict.fromkeys(("why", "report", "logs"), "why"),
    **dict.fromkeys(("shell", "stacks"), "shell"),
    **dict.fromkeys(("doctor", "drill", "notify"), "doctor"),
    **dict.fromkeys(("completion", "mcp"), "shared_options"),
}
"""The modules with several verbs, where each is called `VERB_command`. Others have the name of their verb."""


def _load(verb: str) -> click.Command:
    module = importlib.import_module(f"hpc_launch.cli.{MODULES.get(verb, verb)}")
    command: click.Command = getattr(module, f"{verb}_command" if verb in MODULES else "command")
    return command


@click.group(
    cls=Verbs,
    load=_load,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 the run failed or is stuck, 2 usage error, 3 rejected before submission, "
    "4 the scheduler rejected the job or is unreachable, 5 internal error, 130 interrupted.",
)
@click.version_option(__version__, prog_name="hpc-launch")
def group() -> None:
    """Launch training jobs on any Slurm cluster, or on this machine, from one YAML file. To begin:

    \b
    hpc-launch init train.py           write job.yaml for a training
    hpc-launch validate job.yaml       report all errors in it
    hpc-launch submit job.yaml --wait  run it, and follow it
    hpc-launch why @last               if it failed: the cause, and what to do
    """


common_options(group)


def main() -> None:
    """Entry point of the console script."""
    from hpc_launch.cli.terminal import run_guarded

    sys.exit(run_guarded(group))


if __name__ == "__main__":
    main()
