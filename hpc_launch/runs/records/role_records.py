"""roles.json of an attempt: what each role of the job does, written by agent/roles.py."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from hpc_launch.diagnose.evidence import RoleFault


class RoleState(Struct, frozen=True, kw_only=True):
    """A role, or one replica of it. Times are seconds since the epoch."""

    name: str
    role: str
    state: str
    """`waiting` for other roles, `starting` until it is ready, `ready`, `ended`."""
    since: float
    started: float | None = None
    """When it first started."""
    first_ready: float | None = None
    outages: tuple[tuple[float, float | None], ...] = ()
    """Of each restart: when it had ended, and when it was ready again."""
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


class RoleStates(Struct, frozen=True, kw_only=True):
    """All roles of an attempt."""

    roles: tuple[RoleState, ...] = ()
    """The one whose progress is the job's comes first."""
    failed: RoleFault | None = None

    @property
    def late(self) -> tuple[RoleState, ...]:
        """Those that have not been ready yet."""
        return tuple(role for role in self.roles if role.first_ready is None and role.state != "ended")

    @property
    def ready_at(self) -> float | None:
        """When the last of them was ready for the first time; None while one is not."""
        times = (role.since if role.first_ready is None else role.first_ready for role in self.roles)
        return None if self.late else max(times, default=None)

    def as_json(self) -> list[dict[str, Any]]:
        """The list of `status --json`."""
        shown = (
            *("name", "state", "since", "started", "first_ready", "ready_since", "restarts", "exit_code", "ends_job"),
            *("waits_for", "nodes", "host", "port", "url", "ports"),
        )
        first = self.failed.name if self.failed is not None else None
        return [{key: getattr(role, key) for key in shown} | {"failed": role.name == first} for role in self.roles]
