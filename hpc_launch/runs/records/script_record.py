"""start.json and end.json: what the script itself records of its start and its end."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.job.hostlist import names_or_text


class ScriptRecord(Struct, frozen=True, kw_only=True):
    """A record of the script. Times are seconds since the epoch."""

    job_id: str | None = None
    restart: int | None = None
    """How often Slurm had requeued the job."""
    first_step: int | None = None
    """The number of the job's first step of this attempt; None where the attempt began with the job."""
    exit_code: int | None = None
    signal: str | None = None
    """The signal that ended the script."""
    phase: str | None = None
    """`environment`, `check` (the node check) or `stage` (staging) before the training was started."""
    started: float | None = None
    ended: float | None = None
    """In start.json: when the phase began."""
    warned: bool = False
    """Whether the script was warned of its end (a time stamp in the file)."""
    warned_by: str | None = None
    """The signal that warned it: USR1, or TERM for a preemption."""
    lost_nodes: int = 0
    """Nodes that an elastic run has lost."""
    resumed_step: int | None = None
    saved_step: int | None = None
    """The step of the newest checkpoint at the end."""
    finished: bool = False
    """Whether the training said that no steps are left."""
    nodes: str | None = None
    """Slurm's host list."""

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes by number."""
        return names_or_text(self.nodes)

    @property
    def preempted(self) -> bool:
        """Whether a preemption warned the script (parts/guard.sh takes a SIGTERM for one)."""
        return self.warned_by == "TERM"
