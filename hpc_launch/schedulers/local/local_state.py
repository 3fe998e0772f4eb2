"""local.json in the attempt's folder: the state of a local job, written by its supervisor."""

from __future__ import annotations

import socket
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.json_records import read_record
from hpc_launch.base.pid_space import machine_id, pid_space
from hpc_launch.schedulers.job_files import LOCAL_STATE
from hpc_launch.schedulers.local.processes import is_supervisor, parent_of, start_of
from hpc_launch.schedulers.scheduler import ENDED_STATES


class LocalState(Struct, frozen=True, kw_only=True):
    """The state of a local job. Times are seconds since the epoch; `state` is one of Slurm's."""

    job_id: str
    state: str
    name: str | None = None
    host: str | None = None
    pid: int | None = None
    """The supervisor's process id."""
    pid_start: int | None = None
    """When that process started, in clock ticks since boot: tells a reused process id apart."""
    space: str | None = None
    """The boot and the pid namespace that the process ids belong to, and the machine."""
    machine: str | None = None
    shell: int | None = None
    """Process id of the batch shell."""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDED_STATES

    @property
    def here(self) -> bool:
        """Whether the job runs where this process sees its supervisor, or ran here before the last reboot."""
        if self.host != socket.gethostname() or not self.space:
            return False
        here, boot = pid_space(), self.space.partition(":")[0]
        rebooted = boot != here.partition(":")[0] and bool(self.machine) and self.machine == machine_id()
        return self.space == here or rebooted

    @property
    def place(self) -> str:
        """Where the job runs if not here."""
        return f"{self.host}{', outside this container' if self.host == socket.gethostname() else ''}"

    @property
    def supervised(self) -> bool:
        """Whether the supervisor is alive; meaningful on its own host only. The file may name any process, so the
        process itself must be a supervisor."""
        alive = self.pid is not None and self.pid_start is not None and start_of(self.pid) == self.pid_start
        return alive and self.pid is not None and is_supervisor(self.pid)

    @property
    def batch_shell(self) -> int | None:
        """The batch shell's process id, if that process is a child of the supervisor. Meaningful on its own host."""
        shell = self.shell
        return shell if shell is not None and self.supervised and parent_of(shell) == self.pid else None


def read_local_state(folder: Path) -> LocalState | None:
    """The state in an attempt's folder; None while the supervisor has not written it."""
    return read_record(folder / LOCAL_STATE, LocalState)
