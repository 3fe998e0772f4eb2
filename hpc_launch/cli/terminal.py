"""The user at the terminal, who hears what a service does and answers its questions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from hpc_launch.cli.warn import print_note, warn
from hpc_launch.service.listener import Listener

if TYPE_CHECKING:
    from hpc_launch.base.errors import UserError
    from hpc_launch.base.findings import Finding


class Terminal(Listener):
    """Prints what a service does, and asks the user at the terminal."""

    def say(self, text: str) -> None:
        print_note(text)

    def warn(self, findings: Sequence[Finding]) -> None:
        warn(findings)

    def fail(self, error: UserError) -> None:
        from hpc_launch.cli.error_handler import print_error

        print_error(error)

    def doing(self, what: str) -> AbstractContextManager[Callable[[str], None]]:
        from hpc_launch.view.terminal import waiting_notice

        return waiting_notice(what)

    @property
    def answers(self) -> bool:
        from hpc_launch.view.terminal import is_terminal

        return is_terminal(sys.stdin) and is_terminal(sys.stderr)

    def confirm(self, question: str) -> bool:
        from hpc_launch.job.shell_text import visible

        return click.confirm(visible(question), err=True)


TERMINAL = Terminal()
