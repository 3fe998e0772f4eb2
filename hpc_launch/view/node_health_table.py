"""The ledger of bad nodes for people: a table, and a text for a site's support."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpc_launch.recover.node_health import BadNode
from hpc_launch.view.format_values import ago, clean, duration, pad


def table(nodes: Sequence[BadNode], now: float | None = None) -> list[str]:
    """One line a node."""
    at = time.time() if now is None else now
    rows = [("NODE", "NOTES", "LAST", "WHAT", "KEPT OFF FOR")]
    for one in nodes:
        last = one.notes[-1]
        kept = duration(one.expires - at) if one.avoided else "not yet: one note of this class is not enough"
        rows.append((clean(one.node), str(one.count), ago(at - last.time), clean(last.failure_class), kept))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(pad(text, width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def report(nodes: Sequence[BadNode]) -> list[str]:
    """What a site's support needs to look at the nodes: when, in which jobs, by which lines."""
    lines = ["Our jobs failed on the nodes below. Could you please look at them?", ""]
    for one in nodes:
        lines += [f"{clean(one.node)}: {one.count} job{'s' if one.count > 1 else ''}"]
        for note in one.notes:
            when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(note.time))
            job = f"job {clean(note.job_id)}" if note.job_id else "a job"
            cause = f" ({clean(note.cause)})" if note.cause else ""
            lines.append(f"  {when}  {job} of {clean(note.by)}: {clean(note.failure_class)}{cause}")
            lines += [f"    {clean(quote.text)}" for quote in note.evidence]
        lines.append("")
    return lines[:-1]
