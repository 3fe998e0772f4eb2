"""Exceptions. `UserError` and its subclasses are shown without a traceback; any other exception is an internal error.

UserError                 the user can fix it
├── UsageError      (2)   invalid command line, or no such run
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

from hpc_launch.base.findings import Finding, in_order


class UserError(Exception):
    """An error with a hint. `exit_code` is the command's exit code (listed in docs/verbs.md)."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(UserError):
    """Invalid command line, or an object that does not exist."""

    exit_code = 2


class Refused(UserError):
    """Errors in the job, site or plan; `findings` lists them all in file order. Nothing was submitted."""

    exit_code = 3

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(in_order(findings))
        super().__init__("\n".join(str(finding) for finding in self.findings))


class SchedulerError(UserError):
    """The scheduler rejected the job or is unreachable."""

    exit_code = 4


class SubmitRefused(SchedulerError):
    """The scheduler rejected the job: nothing was submitted. The reason on record begins with `how`."""

    how = "refused"


class NotNow(SubmitRefused):
    """Rejected for what passes by itself, such as a limit that other jobs fill: try the same again later."""

    how = "refused for now"


class NotWritten(SubmitRefused):
    """A file needed for the submission cannot be written; the scheduler was not called."""


class SubmitUnknown(SchedulerError):
    """The outcome is unknown: the job may have been submitted, so it must be looked up by its token first."""


class NoContact(SubmitUnknown):
    """The scheduler could not be reached or did not answer. Submit again once it answers and does not know the job."""


class Unreachable(SchedulerError):
    """The scheduler does not answer queries."""
