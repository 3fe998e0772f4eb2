"""Who hears what a service does, and answers its questions: the command line, a logger, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from hpc_launch.job.shell_text import visible

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


class Logged(Listener):
    """Passes what it hears to the logger `hpc_launch` of Python's `logging`, which prints nothing unless configured."""

    def say(self, text: str) -> None:
        self._log("info", text)

    def warn(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            self._log("warning", f"{finding}; {finding.hint}" if finding.hint else str(finding))

    def fail(self, error: UserError) -> None:
        self._log("error", f"{error}; {error.hint}" if error.hint else str(error))

    def _log(self, level: str, text: str) -> None:
        import logging  # takes longer to import than most verbs need for all else

        logger = logging.getLogger("hpc_launch")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        getattr(logger, level)("%s", visible(text))


QUIET = Listener()
LOGGED = Logged()
