"""Who hears what a service does, and answers its questions: the command line, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpc_launch.base.errors import UserError
    from hpc_launch.base.findings import Finding


class Listener:
    """Hears what a service does. This one ignores it, and nobody answers its questions."""

    def say(self, text: str) -> None:
        """A line about what was done or found; it may quote foreign text."""

    def warn(self, findings: Sequence[Finding]) -> None:
        """Warnings about a job, with their places and hints."""

    def fail(self, error: UserError) -> None:
        """An error with one of several runs: the service goes on with the others."""

    def doing(self, what: str) -> AbstractContextManager[Callable[[str], None]]:  # noqa: ARG002
        """Around what may take long. The block may call the function with what it waits for from then on."""
        return nullcontext(lambda _: None)

    @property
    def answers(self) -> bool:
        """Whether somebody can answer."""
        return False

    def confirm(self, question: str) -> bool:  # noqa: ARG002
        """Whether to go on. Called only where somebody `answers`."""
        return False


QUIET = Listener()
