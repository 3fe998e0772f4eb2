"""Groups of commands that are loaded when they are called, so that start-up does not wait for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """Commands by name, in the order of `about`, which says what each is for.

    `load` is asked for a command only to run it or to show its own help; `title` stands over them in the group's help.
    """

    def __init__(
        self,
        *args: Any,
        about: Mapping[str, str],
        load: Callable[[str], click.Command],
        title: str = "Commands",
        **given: Any,
    ) -> None:
        super().__init__(*args, **given)
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

            near = difflib.get_close_matches(args[0], self.about, 1)
            if near:
                raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", error.ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(self.title):
            formatter.write_dl(list(self.about.items()))
