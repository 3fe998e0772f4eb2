"""Sites as text: the list of profiles, differences between two, and hosts without a scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hpc_launch.job.hostlist import compress
from hpc_launch.view.format_values import aligned, clean, clock_time

if TYPE_CHECKING:
    from hpc_launch.site_tools.learn_hosts import LearnedHosts
    from hpc_launch.site_tools.show_profiles import Difference, ProfileSummary
    from hpc_launch.site_tools.site_nodes import SiteHost

HEADERS = ("NAME", "KIND", "STATUS", "BASIS", "GRADE", "AS OF", "LAYER", "TITLE")


def table(profiles: Sequence[ProfileSummary]) -> list[str]:
    """The list of profiles as aligned columns."""
    rows = (
        (one.name, one.kind, one.status, one.basis or "", one.grade or "", one.as_of or "", one.layer, one.title)
        for one in profiles
    )
    return aligned([HEADERS, *rows])


def difference_lines(differences: Sequence[Difference]) -> Iterator[str]:
    """For each profile that differs: its changed keys with old and new value, and the changed script lines."""
    for one in differences:
        yield f"{clean(one.profile)}: {clean(one.note)}" if one.note else clean(one.profile)
        for change in one.changes:
            old = "" if change.old is None else f"- {clean(change.old)}"
            new = "" if change.new is None else f"+ {clean(change.new)}"
            yield f"  {clean(change.key)}"
            yield from (
                f"    {text}   {clean(where)}".rstrip()
                for text, where in ((old, change.old_origin), (new, change.new_origin))
                if text
            )
        for job, lines in one.scripts.items():
            yield f"  script of {clean(job)}"
            yield from (f"    {clean(line)}" for line in lines)


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


def lease_table(hosts: Sequence[SiteHost]) -> Iterator[str]:
    """The hosts of a site: who uses each, and since when."""
    now = time.time()
    rows: list[tuple[str, ...]] = [("HOST", "SLOTS", "STATE", "USER", "RUN", "JOB", "SINCE")]
    for host in hosts:
        start, state = (host.name, str(host.slots)), host.leases.state
        holders = [
            (state, one.user, one.run, one.job_id, clock_time(one.since, now)) for one in host.leases.holders
        ] or [(state, "", "", "", "")]
        rows += [(*(start if at == 0 else ("", "")), *holder) for at, holder in enumerate(holders)]
    yield from aligned(rows)
    yield from (f"{clean(host.name)}: {clean(host.leases.fault)}" for host in hosts if host.leases.fault is not None)
