"""The errors of the package. `UserError` and its children are shown without a traceback; the rest is a fault of ours.

UserError                 the person at the terminal can mend it
├── UsageError      (2)   the command line is off, or a run is not found
├── Refused         (3)   job, site or plan has faults; nothing was submitted
└── SchedulerError  (4)   the scheduler refused, or cannot be reached
    ├── SubmitRefused     it said no: certainly nothing was submitted
    │   └── NotWritten    it was not even asked: a file of the attempt cannot be written
    ├── SubmitUnknown     no answer in time: the job may have been taken
    └── Unreachable       it does not answer questions now
"""

from __future__ import annotations

from collections.abc import Sequence

from hpc_launch.base.findings import Finding, in_order


class UserError(Exception):
    """What is wrong, and what to do. `exit_code` is what the command ends with (the table is in docs/verbs.md)."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(UserError):
    """The command line names something that is not there, or asks for what cannot be."""

    exit_code = 2


class Refused(UserError):
    """Job, site or plan has faults: `findings` has all of them, as they stand in the files. Nothing was submitted."""

    exit_code = 3

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(in_order(findings))
        super().__init__("\n".join(str(finding) for finding in self.findings))


class SchedulerError(UserError):
    """The scheduler refused or cannot be reached."""

    exit_code = 4


class SubmitRefused(SchedulerError):
    """The scheduler answered no: certainly nothing was submitted."""


class NotWritten(SubmitRefused):
    """A file that the submission needs cannot be written, so the scheduler was not asked."""


class SubmitUnknown(SchedulerError):
    """The scheduler gave no clear answer: the job may have been taken, so its token must be looked up first."""


class Unreachable(SchedulerError):
    """The scheduler does not answer questions at the moment."""
