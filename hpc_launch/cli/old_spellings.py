"""Old names of commands and options: they work for one more release, with a note on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

OLD_SPELLINGS = {
    "config deepspeed --train-batch": "--global-batch",
    "config fsdp --num-machines": "--nodes",
    "config fsdp --num-processes": "--world-size",
    "config launcher --num-gpus-per-node": "--gpus-per-node",
    "config launcher --num-nodes": "--nodes",
    "config slurm --module": "--modules",
    "config slurm --num-gpus-per-node": "--gpus-per-node",
    "config slurm --num-nodes": "--nodes",
    "config slurm --time": "--time-limit",
    "nodes report": "ticket",
    "plan --compare": "--search",
    "plan --from": "--pace-of",
    "sites learn --hosts": "--hostfile",
}
"""The new name of a command or an option, by its old one after the command's words."""


def renewed(group: click.Context, words: Sequence[str]) -> Iterator[str]:
    """The words after a group's name in their new spelling. Says which are old, except to a shell that completes."""
    path = group.command_path.split()[1:]
    end = words.index("--") if "--" in words else len(words)
    for at, word in enumerate(words[:end]):
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        command = [*path, words[0]] if at else path
        new = OLD_SPELLINGS.get(" ".join([*command, name.replace("_", "-")]))
        if new is not None and not group.resilient_parsing:
            click.echo(f"note: `{name}` is now called `{new}`; the old name goes with the next release", err=True)
        yield word if new is None else f"{new}{equals}{value}"
    yield from words[end:]
