"""The job file's keys: one typed, documented field per key. The reference page and the JSON schema are generated from
it.

Each key may also be set by the site's `defaults:`, the user's overlay or `--set`; `job.merge` combines these layers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.job.checkpoint import Checkpoint, Drill, Hang
from hpc_launch.job.container import Code, Container, Environment
from hpc_launch.job.group_keys import Sweep
from hpc_launch.job.launcher import Launcher, Parallel, Strategy
from hpc_launch.job.model import Model
from hpc_launch.job.notify import Notify, Tracker
from hpc_launch.job.retry import Retry
from hpc_launch.job.type_hints import NAME_PATTERN, Mebibytes, Scalar, Seconds, VariableName


class ProgressPatterns(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read the progress from the first node's log: regular expressions that are searched for in each line."""

    step: Annotated[str | None, Meta(examples=[r"step (\d+)/(\d+)"])] = None
    """Group 1 is the step; the optional group 2 is the last step."""
    loss: Annotated[str | None, Meta(examples=[r"loss ([\d.]+)"])] = None
    """Group 1 is the loss."""


class JobSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training job."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN, max_length=64, examples=["tiny-gpt"])]
    """Name of the run and of its Slurm jobs: letters, digits, `.`, `_` and `-`."""
    site: str | None = None
    """Site profile, by name, or by file relative to the job file. `--site` overrides it. Default: detected."""
    queue: str | None = None
    """A queue of the site profile. Default: the site's default queue."""
    account: str | None = None
    """Account to charge. Usually set in the user's overlay."""
    options: Annotated[list[str], Meta(examples=[["nvme"]])] = []
    """Entries of the site's `options:` to enable, such as a local disk."""
    constraint: str | None = None
    """Node features to require, in addition to the site's own constraint."""
    nodes: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)]
        | Annotated[str, Meta(title="a range such as 2..4", pattern=r"^[1-9]\d{0,5}\.\.[1-9]\d{0,5}$")],
        Meta(examples=[4]),
    ] = 1
    """Number of nodes. `2..4` makes the run elastic: it starts on up to four nodes and continues in the same job
    while at least two are left (torchrun only)."""
    spares: Annotated[int, Meta(ge=0, examples=[1])] = 0
    """Number of extra nodes that the job holds. A spare replaces a node that fails: the run continues in the same
    job (Slurm with srun), or in its next one (ssh). An elastic run may start with fewer spares."""
    gpus_per_node: Annotated[int | None, Meta(ge=0, le=1000)] = None
    """GPUs per node. Default: all of a node's GPUs."""
    gpus: Annotated[int | None, Meta(ge=1)] = None
    """Total number of GPUs, distributed evenly over the nodes. An alternative to `gpus_per_node`."""
    processes_per_node: Annotated[int | None, Meta(ge=1, le=10_000)] = None
    """Processes per node. Default: one per GPU, or one on a CPU node."""
    cpus_per_node: Annotated[int | None, Meta(ge=1)] = None
    """CPUs per node. Default: all of a node's CPUs, or the share that belongs to the requested GPUs."""
    memory: Mebibytes | None = None
    """Memory per node, such as `64G`. 0 requests all of it. Default: the queue's rule."""
    time: Annotated[Seconds | None, Meta(examples=["02:00:00"])] = None
    """Time limit in Slurm's formats: `24:00:00` is 24 hours, a plain number is minutes. `90m` and `1d12h` are also
    accepted. Default: the queue's."""
    confirm_gpu_hours: Annotated[float | None, Meta(ge=0, examples=[500])] = None
    """Ask before submitting a job that may use more GPU-hours than this: GPUs times `time`. Usually set in the
    user's overlay or in the site's `defaults:`. Default: never."""
    launcher: Launcher = Launcher(name="torchrun")
    """Launcher that starts the processes."""
    strategy: Strategy = Strategy(name="none")
    """How the training is distributed, and the configuration of the library that does it."""
    parallel: Parallel | None = None
    """Model parallelism. hpc-launch checks it and passes it to Megatron as flags."""
    model: Annotated[Model | None, Meta(examples=["llama3-8b"])] = None
    """The model that is trained, for `plan` and the rules of `parallel`: a known name, a path, or its sizes."""
    precision: Literal["fp32", "tf32", "fp16", "bf16", "fp8"] | None = None
    """Numeric precision, passed to the training in HPC_LAUNCH_PRECISION."""
    script: Annotated[str | None, Meta(examples=["train.py"])] = None
    """The training's Python file, relative to the job file."""
    module: str | None = None
    """Python module to run instead of `script`, as with `python -m`."""
    command: str | list[str] | None = None
    """Command to run instead of `script`: a list of words, or a string that is split like a shell command line. It
    is not run by a shell."""
    args: Annotated[dict[str, Any] | list[Scalar], Meta(examples=[{"lr": 3e-4, "resume": "auto"}])] = {}
    """Arguments of the training. `KEY: VALUE` becomes `--KEY VALUE`; true adds the flag without a value; false and
    null omit it; a list repeats the values. A list of words is passed unchanged."""
    env: dict[str, Scalar] = {}
    """Environment variables of the training. null unsets a variable."""
    environment: Environment = Environment()
    """Modules, virtual environment and interpreter."""
    secrets: list[VariableName] = []
    """Variables to pass to the training without writing their values to any file of the run. The values come from
    the submitting shell or from `secrets.env` in the configuration folder (mode 0600)."""
    trackers: Annotated[list[Tracker], Meta(examples=[["wandb"]])] = []
    """Experiment trackers that the training logs to: `wandb`, `tensorboard`."""
    container: Container | None = None
    """Container image to run the training in."""
    workdir: str | None = None
    """Working directory of the training. Default: the job file's folder."""
    run_dir: str | None = None
    """Parent of the run folders, on storage that login and compute nodes share. Default: the site's, then
    $HPC_LAUNCH_HOME, then `~/hpc-launch/runs`."""
    code: Code = Code()
    """Whether the run keeps a snapshot of the training's code."""
    retry: Retry = Retry()
    """What to retry automatically when the run fails, and how often."""
    checkpoint: Checkpoint = Checkpoint()
    """How to warn the training before its end, where its checkpoints are and how to resume from them."""
    preflight: Literal["quick", "full", "only", "off"] = "quick"
    """The check of each node before the training starts. A node that fails it is excluded, and the job continues
    elsewhere. `full` also measures each GPU and the network between the nodes. `only`: the job ends after the full
    check, as `hpc-launch doctor` uses it."""
    hang: Hang = Hang()
    """The watcher on each node, and when to treat a silent training as hanging."""
    drill: Drill = Drill()
    """Overrides for `hpc-launch drill`."""
    progress: ProgressPatterns = ProgressPatterns()
    """How to read the progress from the log."""
    notify: Notify | None = None
    """Messages about the run: when, and to whom ([details](notifications.md)). Default: none."""
    sweep: Sweep | None = None
    """Runs that differ in some values: they become job arrays, a run for each point."""
    exclude: list[str] = []
    """Nodes to exclude, as Slurm host lists."""
    sbatch: Annotated[dict[str, Scalar], Meta(examples=[{"reservation": "tutorial", "mail-type": "END"}])] = {}
    """Additional sbatch options by long name. true adds a flag without a value; null removes an option."""

    @property
    def max_nodes(self) -> int:
        """Number of requested nodes; the maximum of an elastic run."""
        return self.nodes if isinstance(self.nodes, int) else int(self.nodes.partition("..")[2])

    @property
    def held_nodes(self) -> int:
        """Number of nodes that the job holds, with its spares."""
        return self.max_nodes + self.spares

    @property
    def min_nodes(self) -> int:
        """Minimum number of nodes of an elastic run; otherwise the number of requested nodes."""
        return self.nodes if isinstance(self.nodes, int) else int(self.nodes.partition("..")[0])

    @property
    def elastic(self) -> bool:
        """Whether the run continues on fewer nodes."""
        return self.min_nodes < self.max_nodes
