"""Exceptions. `UserError` and its subclasses are shown without a traceback; any other exception is an internal error.

UserError                 the user can fix it
├── UsageError      (2)   invalid command line, or no such run
├── NotOver         (1)   a program waited for a run, which is not over in time
├── Refused         (3)   errors in the job, site or plan; nothing was submitted
└── SchedulerError  (4)   the scheduler rejected the job or is unreachable
    ├── SubmitRefused     rejected: nothing was submitted
    │   ├── NotNow        rejected for what passes by itself: the same submission may succeed later
    │   └── NotWritten    not attempted: a file of the attempt cannot be written
    ├── SubmitUnknown     no answer in time: the job may have been submitted
    │   └── NoContact     the scheduler could not be reached, or did not answer: it may answer later
    └── Unreachable       the scheduler does not answer queries
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpc_launch.base.findings import Finding, Place, errors, in_order


class UserError(Exception):
    """An error with a hint. `exit_code` is the command's exit code (listed in docs/reference/verbs.md)."""

    exit_code = 1
    findings: tuple[Finding, ...] = ()
    """What is wrong with the job or the site, in file order, with warnings; empty for an error of another kind."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.__notes__ = [f"hint: {hint}"] if hint else []  # Python shows them below a traceback

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: a subclass may take other arguments than its message."""
        return _restored, (type(self), str(self), self.__dict__)

    @property
    def code(self) -> str | None:
        """The code of the first finding that is an error, such as `HL010`: a section of docs/reference/findings.md."""
        return next((finding.code.value for finding in errors(self.findings)), None)

    @property
    def place(self) -> Place | None:
        """The file, line and column of that finding."""
        return next((finding.place for finding in errors(self.findings)), None)


def _restored(kind: type[UserError], message: str, state: dict[str, Any]) -> UserError:
    error = kind.__new__(kind, message)
    error.__dict__.update(state)
    return error


class UsageError(UserError):
    """Invalid command line, or an object that does not exist."""

    exit_code = 2


class NotOver(UserError, TimeoutError):
    """A run is not over after the time that a program waited for it. The run goes on."""


class Refused(UserError):
    """Errors in the job, site or plan; `findings` lists them all in file order. Nothing was submitted."""

    exit_code = 3

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(in_order(findings))
        super().__init__("\n".join(str(finding) for finding in self.findings))
        self.hint = next((finding.hint for finding in errors(self.findings)), None)
        self.__notes__ = [f"hint on {finding.code}: {finding.hint}" for finding in self.findings if finding.hint]


class SchedulerError(UserError):
    """The scheduler rejected the job or is unreachable."""

    exit_code = 4


class SubmitRefused(SchedulerError):
    """The scheduler rejected the job: nothing was submitted. The reason on record begins with `how`."""

    how = "refused"


class NotNow(SubmitRefused):
    """Rejected for what passes by itself, such as a limit that other jobs fill: try the same again later."""

    how = "refused for now"


class NotHere(NotNow):
    """No job can be submitted from this host, whatever it is."""


class NotWritten(SubmitRefused):
    """A file needed for the submission cannot be written; the scheduler was not called."""


class SubmitUnknown(SchedulerError):
    """The outcome is unknown: the job may have been submitted, so it must be looked up by its token first."""


class NoContact(SubmitUnknown):
    """The scheduler could not be reached or did not answer. Submit again once it answers and does not know the job."""


class Unreachable(SchedulerError):
    """The scheduler does not answer queries."""
