"""`completion`: the script that teaches a shell this command, and the names of runs that it completes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VARIABLE = "_HPC_LAUNCH_COMPLETE"
"""How the shell asks the program for completions (click makes this name from the program's)."""


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs whose name begins so, newest first. Never raises: a fault would land in the middle of a command line."""
    try:
        from click.shell_completion import CompletionItem

        from hpc_launch.run.run_index import user_index

        entries = user_index(os.environ).entries()
        items = [CompletionItem(entry.run, help=entry.last_state) for entry in entries]
        items += [CompletionItem("@last", help="the newest run")] if items else []
        return [item for item in items if item.value.startswith(incomplete) and item.value.isprintable()]
    except Exception:
        return []


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes verbs, options and names of runs in your shell.

    \b
    hpc-launch completion bash >> ~/.bashrc
    hpc-launch completion zsh >> ~/.zshrc
    hpc-launch completion fish > ~/.config/fish/completions/hpc-launch.fish
    """
    from click.shell_completion import get_completion_class

    from hpc_launch.cli.main import group

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"click knows no completion for {shell}")
    click.echo(found(group, {}, "hpc-launch", VARIABLE).source())
