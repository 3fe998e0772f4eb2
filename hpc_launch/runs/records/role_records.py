"""roles.json of an attempt: what each role of the job does, written by agent/roles.py."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class RoleState(Struct, frozen=True, kw_only=True):
    """A role, or one replica of it. Times are seconds since the epoch."""

    name: str
    role: str
    state: str
    """`waiting` for other roles, `starting` until it is ready, `ready`, `ended`."""
    since: float
    nodes: tuple[str, ...] = ()
    host: str = ""
    port: int = 0
    url: str = ""
    ports: dict[str, int] = {}
    ready_since: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    ends_job: bool = False
    waits_for: str | None = None
    """While it starts: the last answer to the question whether it is ready."""


class RoleFault(Struct, frozen=True, kw_only=True):
    """The role that ended the job by failing first."""

    name: str
    role: str
    node: str
    exit_code: int
    why: str
    ended: bool = False
    """Whether it ended by itself."""


class RoleStates(Struct, frozen=True, kw_only=True):
    """All roles of an attempt."""

    roles: tuple[RoleState, ...] = ()
    failed: RoleFault | None = None

    def as_json(self) -> list[dict[str, Any]]:
        """The list of `status --json`."""
        shown = (
            *("name", "state", "since", "ready_since", "restarts", "exit_code", "ends_job", "nodes"),
            *("host", "port", "url", "ports"),
        )
        return [{key: getattr(role, key) for key in shown} for role in self.roles]
