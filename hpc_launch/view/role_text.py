"""The roles of a job as text: what each does, since when, and which one failed first."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hpc_launch.runs.records.role_records import RoleState
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import clean, duration, hosts


def states_of(status: RunStatus) -> tuple[RoleState, ...]:
    """The roles of the newest attempt; none for a job of one program."""
    return status.roles.roles if status.roles is not None else ()


def restarted(role: RoleState) -> str:
    """`restarted once`, `restarted 2 times`; '' if it was not."""
    return {0: "", 1: "restarted once"}.get(role.restarts, f"restarted {role.restarts} times")


def all_ready(status: RunStatus) -> str:
    """`all were ready 42 s after the job began, server last`; '' before, and for one role."""
    began, states = status.attempts[-1].started if status.attempts else None, status.roles
    if states is None or states.ready_at is None or began is None or len(states.roles) < 2:
        return ""
    last = max(states.roles, key=lambda role: role.since if role.first_ready is None else role.first_ready)
    return f"all were ready {duration(max(0.0, states.ready_at - began))} after the job began, {clean(last.name)} last"


def roles_line(status: RunStatus) -> str:
    """The roles that are away or were restarted, for one line; '' for none, while the run starts, and once it ended."""
    found = states_of(status) if status.startup is None and not status.final else ()
    odd = [role for role in found if role.restarts or role.state in ("waiting", "starting")]
    return "; ".join(" ".join(filter(None, (clean(role.name), role.state, restarted(role)))) for role in odd)


def role_lines(status: RunStatus, now: float) -> list[str]:
    """A line for each role, and how long it took until all were ready."""
    found = states_of(status)
    width = max((len(role.name) for role in found), default=0)
    lines = [f"{clean(role.name):<{width}}  {', '.join(_parts(status, role, now))}" for role in found]
    return [*lines, *filter(None, [all_ready(status)])]


def _parts(status: RunStatus, role: RoleState, now: float) -> Iterator[str]:
    ended, failed = role.state == "ended", status.roles.failed if status.roles is not None else None
    yield f"ended with exit code {role.exit_code}" if ended else f"{clean(role.state)} for {duration(now - role.since)}"
    if failed is not None and failed.name == role.name:
        yield "failed first"
    yield f"on {hosts(role.nodes)}"
    if role.state in ("starting", "ready") and not role.ends_job:
        yield clean(role.url)
    if role.waits_for:
        yield clean(role.waits_for)
    if role.started is not None and role.first_ready is not None:
        yield f"its start took {duration(role.first_ready - role.started)}"
    yield from filter(None, [restarted(role)])


def tunnel(status: RunStatus) -> str:
    """The command that reaches a server from another machine; '' where none is ready."""
    open_ = next((role for role in states_of(status) if role.state == "ready" and not role.ends_job), None)
    if open_ is None or status.final:
        return ""
    place = f"{open_.port}:{clean(open_.host)}:{open_.port}"
    return f"ssh -L {place} {clean(os.uname().nodename)}  reaches {clean(open_.name)} from another machine"
