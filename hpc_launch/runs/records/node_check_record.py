"""node-check.json: the outcome of the node check, written by the first node before the training starts."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.base.json_records import read_record
from hpc_launch.runs.layout import AttemptFolder

BAD_NODES = 76
"""Exit code of a job whose node check failed (agent/judge.py)."""


class NodeCheckFinding(Struct, frozen=True, kw_only=True):
    """One failed check: of `node`, or of so many `nodes` that it is not the fault of one."""

    check: str
    text: str
    node: str | None = None
    nodes: int | None = None
    seconds: float | None = None
    """When it was certain, since the first node began its check."""


class NodeCheckRecord(Struct, frozen=True, kw_only=True):
    """The outcome of the node check."""

    job_id: str | None = None
    nodes: int | None = None
    """How many nodes were checked."""
    seconds: float | None = None
    bad: tuple[NodeCheckFinding, ...] = ()
    common: tuple[NodeCheckFinding, ...] = ()
    """What failed on most nodes. The training started all the same."""
    not_checked: dict[str, str] = {}
    """Checks that were not possible, with the reason."""
    medians: dict[str, str] = {}
    """What the nodes of this job reach, by measurement (`preflight: full`)."""


def read_node_check(attempt: AttemptFolder) -> NodeCheckRecord | None:
    """The record; None where there was no check, or where the file is torn."""
    return read_record(attempt.node_check, NodeCheckRecord)
