"""`roles:` of a job file: several programs in one job, such as a model server and the training that asks it.

Groups of runs: `sweep:`, runs that differ in some values, and the keys of the stages of a pipeline.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from hpc_launch.job.container import Container, Environment
from hpc_launch.job.launcher import Launcher
from hpc_launch.job.type_hints import Duration, Scalar, VariableName, short_form

_GridValues = dict[str, list[Any]]


class RandomRange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A range to draw numbers from: whole ones if both ends are."""

    low: Annotated[float, Meta(examples=[1e-5])]
    """Smallest number."""
    high: Annotated[float, Meta(examples=[1e-2])]
    """Largest number."""
    scale: Literal["linear", "log"] = "linear"
    """`log` draws the logarithm evenly, as for a learning rate."""


class RandomValues(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Points whose values are drawn at random. The same seed draws the same points."""

    count: Annotated[int, Meta(ge=1)]
    """Number of points."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Seed of the random numbers."""
    values: Annotated[
        dict[str, RandomRange | list[Any]], Meta(examples=[{"args.lr": {"low": 1e-5, "high": 1e-2, "scale": "log"}}])
    ]
    """Dotted keys of the job, each with a range or with the values to choose from."""


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The points of a sweep. Each combination of what `grid`, `zip`, `list` and `random` give is a point."""

    grid: Annotated[_GridValues, Meta(examples=[{"args.lr": [1e-4, 3e-4], "args.seed": [1, 2]}])] = {}
    """Dotted keys of the job with their values; each combination is a point."""
    zip: _GridValues = {}
    """Keys whose values belong together: the first of each, the second of each, …"""
    list_: list[dict[str, Any]] = field(default=[], name="list")
    """Points, each with its keys and values."""
    random: RandomValues | None = None
    """Values drawn at random."""
    exclude: list[dict[str, Any]] = []
    """Points to leave out: those that have all values of an entry."""
    limit: Annotated[int | None, Meta(ge=1)] = None
    """How many points run at the same time. Default: no limit; one on the local scheduler."""
    metric: Annotated[str | None, Meta(examples=[r"accuracy ([\d.]+)"])] = None
    """Regular expression for the log of a point; group 1 of its last match is the value by which points are
    compared. Default: the loss of `progress:`."""
    goal: Literal["min", "max"] = "min"
    """Whether a small or a large value is better."""


Condition = Literal["ok", "any", "not-ok"]

STAGE_NAME = r"^[A-Za-z][A-Za-z0-9_]*(-[A-Za-z][A-Za-z0-9_]*)*$"
"""No dot, and no part that begins with a digit: `train.7` is a point of `train`, and `watch-200` one of its runs."""


class OnCheckpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of the stage for each new complete checkpoint."""

    checkpoint: Annotated[str, Meta(examples=["train"])]
    """The stage whose checkpoints count."""
    every: Annotated[int, Meta(ge=1)] = 1
    """Only every Nth checkpoint. The last one always counts, once the training is over."""


class StageKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stage waits for. Beside these keys it has those of a job."""

    after: Annotated[dict[str, Condition] | list[str] | str | None, Meta(examples=[{"train": "ok"}])] = None
    """The stages that must be over: a name, a list, or names with a condition: `ok` (the default), `not-ok` or
    `any`."""
    on: OnCheckpoint | None = None
    """Run once for each checkpoint of another stage."""
    each: str | None = None
    """Run once for each point of this stage, which is a sweep, when the point is over."""

    @property
    def conditions(self) -> dict[str, Condition]:
        """The stages in `after:`, with their conditions."""
        if isinstance(self.after, dict):
            return self.after
        names = [self.after] if isinstance(self.after, str) else self.after or []
        return dict.fromkeys(names, "ok")

    @property
    def target(self) -> str | None:
        """The stage that `on:` or `each:` names."""
        return self.on.checkpoint if self.on is not None else self.each


class Stages(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a pipeline's job file beside those that its stages share."""

    jobs: dict[str, StageKeys]
    """The stages of a pipeline by their names. Keys outside `jobs` are shared by all of them."""


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
