"""Options, arguments and completions that several verbs share, and groups that import a command when it is called.

The verbs that only hand on to another program: a shell, or an assistant.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VARIABLE = "_HPC_LAUNCH_COMPLETE"
"""The variable by which the shell requests completions; click derives it from the program's name."""
MOST_NAMES = 1000
"""How many names of runs are offered."""


def _complete(module: str, function: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Complete the names that a function of the package lists."""

    def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        known = getattr(importlib.import_module(f"hpc_launch.{module}"), function)()
        return [name for one in known if (name := getattr(one, "name", one)).startswith(incomplete)]

    return names


complete_site = _complete("sites.search_path", "profile_names")
complete_team = _complete("sites.search_path", "teams")


site_option = click.option(
    "--site", metavar="NAME", shell_complete=complete_site, help="Site profile, by name or file."
)

set_option = click.option(
    "--set",
    "sets",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a key of the job file by its dotted path, e.g. --set args.lr=0.001. Repeatable.",
)


def of_a_job(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb with what each has that takes one job: the file, `--site` and `--set`."""
    job = click.argument("job", type=click.Path(path_type=Path, readable=False))
    return job(site_option(set_option(verb)))


output_option = click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write to FILE instead of stdout.", metavar="FILE"
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def yes_option(help_: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`-y`, for a verb that would ask."""
    return click.option("-y", "--yes", is_flag=True, help=help_)


def seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """The seconds of a duration such as 30d, for an option's callback. Raises BadParameter."""
    from hpc_launch.job.units import parse_duration

    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _show_program(event: str, details: tuple[Any, ...]) -> None:
    """Show a program that this process starts, by Python's own audit event."""
    if event == "subprocess.Popen":
        import shlex

        from hpc_launch.job.shell_text import visible

        click.echo(visible(f"+ {shlex.join(map(os.fsdecode, details[1]))}"), err=True)


def _note(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    before = is_set(param.name or "", ctx)
    ctx.meta[f"{__name__}.{param.name}"] = before or value
    if param.name == "verbose" and value and not before:
        sys.addaudithook(_show_program)


def is_set(flag: str, ctx: click.Context | None = None) -> bool:
    """Whether the user gave an option that all verbs have, before or after the verb."""
    context = ctx or click.get_current_context(silent=True)
    return context is not None and context.meta.get(f"{__name__}.{flag}", False)


def common_options(command: click.Command) -> click.Command:
    """The command with the options that all have."""
    for flag, text in (
        ("quiet", "Print no notes: only results, warnings and errors."),
        ("verbose", "Print each program that is run."),
    ):
        command.params.append(
            click.Option([f"-{flag[0]}", f"--{flag}"], is_flag=True, expose_value=False, callback=_note, help=text)
        )
    return command


def on_clusters(command: click.Command) -> click.Command:
    """The verb with `--on CLUSTER`, with which it runs there, if it is about jobs or runs."""
    here, own = command.callback, {param.name for param in command.params}
    if "on" in own or not own & {"run", "runs", "job", "jobs", "table"}:
        return command

    def run(on: str | None, **given: Any) -> Any:
        if on is None:
            return here(**given) if here is not None else None
        from hpc_launch.cli.terminal import run_on_cluster

        return run_on_cluster(on, given, takes_site="site" in own and given.get("site") is None)

    command.callback = run
    text = "Do it on this cluster, which `hpc-launch clusters add` has set up."
    names = _complete("remote.clusters", "names")
    command.params.append(click.Option(["--on"], metavar="CLUSTER", shell_complete=names, help=text))
    return command


def echo_json(value: object) -> None:
    """Print `value` as indented JSON. ASCII only, so that foreign text cannot control the terminal."""
    click.echo(json_text(value), nl=False)


def json_text(value: object) -> str:
    """What `echo_json` prints."""
    import json

    return json.dumps(value, indent=2) + "\n"


def echo_answer(value: object, lines: Iterable[str], note: str = "", *, as_json: bool) -> None:
    """Print `value` as JSON, or else these lines, and then a note on stderr."""
    from hpc_launch.cli.terminal import print_note
    from hpc_launch.view.terminal import write_lines

    if as_json:
        echo_json(value)
        return
    write_lines(list(lines))
    if note:
        print_note(note)


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
"""The new name of a command or an option, by its old one after the command's words, for one more release."""


def _renewed(group: click.Context, words: Sequence[str]) -> Iterator[str]:
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


class LazyGroup(click.Group):
    """A group of commands, its own or imported on demand.

    Args:
        load: Imports a command by name, to run it or to show its help.
        sections: Command names and their short help by heading, in the order of the help; default: its own commands.
    """

    def __init__(
        self,
        *args: Any,
        load: Callable[[str], click.Command] | None = None,
        sections: Mapping[str, Mapping[str, str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.load = load or self.commands.__getitem__
        self.sections = sections

    @property
    def about(self) -> Mapping[str, str]:
        """Command names and their short help."""
        if self.sections is None:
            return {name: command.short_help or "" for name, command in self.commands.items()}
        return {name: text for about in self.sections.values() for name, text in about.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.about)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = self.load(cmd_name) if cmd_name in self.about else None
        if command is not None and not any(param.name == "quiet" for param in command.params):
            command = common_options(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, list(_renewed(ctx, args)))
        except click.UsageError as error:
            import difflib

            matches = difflib.get_close_matches(args[0], self.about, 1)
            if matches:
                raise click.UsageError(f"{error.message} Did you mean {matches[0]!r}?", error.ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, self.about))
        for title, about in (self.sections or {"Commands": self.about}).items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), text) for name, text in about.items()])


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a run, newest first. Never raises: an error would garble the command line."""
    try:
        from click.shell_completion import CompletionItem

        from hpc_launch.runs.run_index import user_index

        index = user_index()
        if "/" in incomplete:
            from hpc_launch.runs.find_run import part_names

            return [CompletionItem(name) for name in part_names(incomplete, index)[:MOST_NAMES]]
        entries = index.entries(prefix=incomplete, limit=MOST_NAMES)
        items = [CompletionItem(entry.run, help=entry.site) for entry in entries]
        items += [CompletionItem("@last", help="the newest run")] if items else []
        return [item for item in items if item.value.startswith(incomplete) and item.value.isprintable()]
    except Exception:
        return []


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
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


@click.command("mcp")
def mcp_command() -> None:
    """Serve assistants over the Model Context Protocol (MCP), on stdin and stdout.

    They read: validate, plan, render, status, list, logs, why, report. With a section `agents:` in user.yaml they also
    submit, within its limits, and cancel and resubmit what they have submitted. Start it in the folder of the project:
    job files elsewhere are not read.

    \b
    hpc-launch mcp
    """
    try:
        from hpc_launch.mcp_server.server import serve
    except ModuleNotFoundError as error:
        from hpc_launch.base.errors import UsageError

        raise UsageError(f"{error.name} is not installed", "pip install 'hpc-launch[mcp]'") from None
    serve()
