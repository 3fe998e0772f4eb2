"""Command groups that import a command only when it is called, to keep start-up fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group of commands imported on demand.

    Args:
        about: Command names and their short help, in the order of the group's help.
        load: Imports a command by name, to run it or to show its help.
        title: Heading of the command list in the group's help.
    """

    def __init__(
        self,
        *args: Any,
        about: Mapping[str, str],
        load: Callable[[str], click.Command],
        title: str = "Commands",
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.about = about
        self.load = load
        self.title = title

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.about)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.load(cmd_name) if cmd_name in self.about else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            matches = difflib.get_close_matches(args[0], self.about, 1)
            if matches:
                raise click.UsageError(f"{error.message} Did you mean {matches[0]!r}?", error.ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(self.title):
            formatter.write_dl(list(self.about.items()))
