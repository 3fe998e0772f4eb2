"""`roles:` of a job file: several programs in one job, such as a model server and the training that asks it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.job.container import Container, Environment
from hpc_launch.job.launcher import Launcher
from hpc_launch.job.type_hints import Duration, Scalar, VariableName, short_form

ROLE_NAME = r"^[a-z][a-z0-9_]*$"
PORT_NAME = Annotated[str, Meta(pattern=ROLE_NAME, max_length=32)]


class Ready(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a role is ready, so that the roles after it may start. Give one of the first four keys."""

    http: Annotated[str | None, Meta(pattern=r"^/[!-~]*$", examples=["/health"])] = None
    """A path at its own port that answers GET with a status of 200 to 299."""
    tcp: bool = False
    """Its own port accepts connections."""
    log: Annotated[str | None, Meta(examples=["Application startup complete"])] = None
    """Regular expression that a line of its log matches."""
    ray: bool = False
    """All nodes of its Ray cluster are there. The default for `launcher: ray`."""
    within: Annotated[Duration, Meta(ge=1, examples=["30m"])] = 600
    """How long it may take. Then the job fails."""

    __short_forms__ = short_form("`ready: /health`: the path.", {str: "http"})


class Role(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One program of the job, with keys of its own beside those that it has in common with a job."""

    nodes: Annotated[Annotated[int, Meta(ge=1)] | Literal["rest"], Meta(examples=["rest"])] = 1
    """Nodes of the role, or of each replica; `rest`: those that the other roles leave."""
    beside: str | None = None
    """A role on whose first nodes this one runs. It says nothing about the order."""
    gpus: Annotated[int | None, Meta(ge=0)] = None
    """GPUs on each of its nodes. Roles on the same node get different ones. Default: those of the job, or with
    `beside` none."""
    replicas: Annotated[int, Meta(ge=1, le=1000)] = 1
    """How many times it runs, each time on nodes of its own."""
    ports: Annotated[list[PORT_NAME], Meta(examples=[["metrics"]])] = []
    """Names of further ports, which it finds in ROLE_PORT_NAME."""
    ready: Ready | None = None
    """When the roles after it may start. Default: once its log exists."""
    after: str | list[str] = []
    """The roles that have to be ready first."""
    ends: Literal["job"] | None = None
    """`job`: the job is done when this role is; with several of them, when all are. The end of any other role before
    is a failure, whatever its exit code."""
    restart: Annotated[int, Meta(ge=0, le=1000)] = 0
    """How often the role is started again in the same job, at the same address, when it ends too early."""
    grace: Annotated[Duration, Meta(ge=1)] = 30
    """How long it may take to end after SIGTERM."""
    unset: list[VariableName] = []
    """Variables to take out of its environment, such as SLURM_NTASKS for a program that starts MPI."""
    launcher: Launcher | None = None
    """Launcher, as in a job, and `ray`. Default: the job's; a `command` is started once on each node."""
    script: str | None = None
    """Python file, as in a job."""
    module: str | None = None
    """Python module, as in a job."""
    command: str | list[str] | None = None
    """Command, as in a job. `$ROLE_PORT` and other variables of roles in it are replaced."""
    args: dict[str, Any] | list[Scalar] = {}
    """Arguments, as in a job."""
    env: dict[str, Scalar] = {}
    """Environment variables, over those of the job."""
    environment: Environment | None = None
    """Modules, virtual environment and interpreter. Default: those of the job."""
    container: Container | None = None
    """Container image. Default: the job's."""
    processes_per_node: Annotated[int | None, Meta(ge=1, le=10_000)] = None
    """Processes per node, as in a job."""
    checkpoint: dict[str, Any] = {}
    """Checkpoints, as in a job, of a role that ends it."""
    progress: dict[str, Any] = {}
    """Progress, as in a job, of a role that ends it."""
    workdir: str | None = None
    """Working directory. Default: the job's."""

    @property
    def awaited(self) -> tuple[str, ...]:
        """The roles in `after:`."""
        return (self.after,) if isinstance(self.after, str) else tuple(self.after)


OWN_KEYS = frozenset(
    {"nodes", "beside", "gpus", "replicas", "ports", "ready", "after", "ends", "restart", "grace", "unset"}
)
"""The keys that a job does not have, or that mean something else there."""
