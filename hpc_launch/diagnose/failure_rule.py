"""A failure rule, its cause and its class, as the YAML files hold them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from hpc_launch.diagnose.diagnosis import Action, Level

Role = Literal["root", "setup", "confirm", "cascade", "context"]


class FailureRule(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of line."""

    id: str
    cause: str
    match: str | list[str]
    """Regular expressions, searched in the line without colours and rank prefix. Groups:
    `node` (who is at fault), `index` (its number in the job), `at` (a node that is only mentioned), `rank`, `peer` (an
    address)."""
    examples: list[str]
    """Lines that must match; the tests run them."""
    source: str
    """Where the wording comes from: a program and its file, or a document."""
    role: Role = "root"
    """`setup`: a command of the job's script before its program, after whose failure the script continues."""
    order: int = 20
    """Lower is nearer to the root: 10 nothing else causes it, 20 a clear cause, 30 a likely one, 40 the program's own
    exception, 50 a consequence of the end of another process, 60 a bare exit code."""
    failure_class: str | None = msgspec.field(default=None, name="class")
    """Where it differs from the class of the cause."""
    verdict: Action | None = None
    """Where it differs from the default of the class."""
    at_start: Action | None = None
    """The verdict where no training step was seen yet: the setup is probably wrong."""
    advice: str = ""
    unless: str = ""
    """A match does not count if this matches in it, near it, or at the beginning of the line."""
    firm: bool = False
    """Counts even in a line that is marked as a warning."""
    counters: list[str] = []
    """Lines that must not match; the tests run them."""

    @property
    def patterns(self) -> list[str]:
        """All its expressions."""
        return [self.match] if isinstance(self.match, str) else self.match


class Cause(Struct, frozen=True, forbid_unknown_fields=True):
    """A cause, and the class that it belongs to."""

    failure_class: str = msgspec.field(name="class")
    means: str


class ClassFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """What a failure class means, the default verdict, and what a person does."""

    title: str
    level: Level
    means: str
    verdict: Action
    does: str
    advice: str
    you: str
