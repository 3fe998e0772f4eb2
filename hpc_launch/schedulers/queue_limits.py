"""What may keep a job from starting although nodes are free: limits of accounts, QOS, partitions, and reservations."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Scope = Literal["job", "node", "user", "account", "group"]


class Limit(Struct, frozen=True):
    """One limit. `resource` is Slurm's name (`node`, `cpu`, `gres/gpu`), `wall` (seconds), `jobs` or `submitted`."""

    owner: str
    """Whose limit it is, such as `QOS normal`."""
    name: str
    """Slurm's name of the limit, such as `MaxTRES`."""
    scope: Scope
    """What `amount` is for: each job, each node of a job, or all jobs together of a user, account or group."""
    resource: str
    amount: int
    least: bool = False
    """Whether `amount` is the minimum."""
    used: int | None = None
    """For `jobs` and `submitted`: how many the user has; None if unknown."""


class QueueLimits(Struct, frozen=True):
    """The limits that apply to a job."""

    limits: tuple[Limit, ...] = ()
    problems: tuple[str, ...] = ()
    """Why the job can never start."""
    notes: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    """What could not be asked, with the reason."""


class Balance(Struct, frozen=True):
    """The budget of an account, in hours of one unit of the resource."""

    account: str
    resource: str
    """Slurm's name, such as `gres/gpu`."""
    limit_h: float
    used_h: float


class ArrayRoom(Struct, frozen=True):
    """What bounds the job arrays of a user."""

    max_array_size: int
    """Task numbers end below it (MaxArraySize)."""
    queued: int
    """The user's jobs and tasks that wait or run in the partition."""
    more: int | None = None
    """How many more jobs and tasks the limits of Slurm accept now; None for no known limit."""


class Reservation(Struct, frozen=True):
    """A reservation of nodes. Times are seconds since the epoch."""

    name: str
    start: float
    end: float
    nodes: frozenset[str]
    flags: tuple[str, ...] = ()


class Reservations(Struct, frozen=True):
    """All reservations of nodes, and the nodes of the partition that they may take."""

    nodes: frozenset[str] = frozenset()
    reservations: tuple[Reservation, ...] = ()
    unread: tuple[str, ...] = ()
    """Names of reservations whose times are not understood."""
