"""Hosts without a scheduler as text: what `sites learn --hosts` found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hpc_launch.spec.hostlist import compress
from hpc_launch.view.format_values import clean, display_width, pad

if TYPE_CHECKING:
    from hpc_launch.site_tools.learn_hosts import LearnedHosts


def learned_lines(learned: LearnedHosts) -> Iterator[str]:
    """How many hosts answered, why others did not, and where the hosts differ."""
    count = len(learned.hosts)
    yield f"{count} of {count + len(learned.faults)} hosts answered"
    yield from (f"{clean(host)}: left out: {clean(fault)}" for host, fault in learned.faults.items())
    yield from (f"{clean(host)}: {clean(fault)}" for host, facts in learned.hosts.items() for fault in facts.faults)
    if count < 2:
        return
    found = learned.differences
    if not found:
        yield "the hosts do not differ"
        return
    rows = [("DIFFERENCE", "VALUE", "HOSTS")]
    for one in found:
        for at, (value, hosts) in enumerate(one.values.items()):
            rows.append(("" if at else one.fact, value, compress(hosts)))
    yield from aligned(rows)


def aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows as columns, without control characters."""
    texts = [tuple(map(clean, row)) for row in rows]
    widths = [max(display_width(row[column]) for row in texts) for column in range(len(texts[0]))]
    return ("  ".join(pad(text, width) for text, width in zip(row, widths, strict=True)).rstrip() for row in texts)
