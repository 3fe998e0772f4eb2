"""`completion`: shell completion for verbs, options and run names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VARIABLE = "_HPC_LAUNCH_COMPLETE"
"""The variable by which the shell requests completions; click derives it from the program's name."""


MOST_NAMES = 1000
"""How many names of runs are offered."""


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a run, newest first. Never raises: an error would garble the command line."""
    try:
        from click.shell_completion import CompletionItem

        from hpc_launch.runs.run_index import user_index

        index = user_index(os.environ)
        if "/" in incomplete:
            from hpc_launch.runs.find_run import part_names

            return [CompletionItem(name) for name in part_names(incomplete, index)[:MOST_NAMES]]
        entries = index.entries(prefix=incomplete, limit=MOST_NAMES)
        items = [CompletionItem(entry.run, help=entry.last_state) for entry in entries]
        items += [CompletionItem("@last", help="the newest run")] if items else []
        return [item for item in items if item.value.startswith(incomplete) and item.value.isprintable()]
    except Exception:
        return []


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell, for verbs, options and run names.

    \b
    hpc-launch completion bash >> ~/.bashrc
    hpc-launch completion zsh >> ~/.zshrc
    hpc-launch completion fish > ~/.config/fish/completions/hpc-launch.fish
    """
    from click.shell_completion import get_completion_class

    from hpc_launch.cli.main import group

    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(completion(group, {}, "hpc-launch", VARIABLE).source())
