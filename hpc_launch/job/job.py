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
from hpc_launch.job.launcher import Launcher, Parallel
from hpc_launch.job.model import Model
from hpc_launch.job.notify import Notify, Tracker
from hpc_launch.job.retry import Retry
from hpc_launch.job.strategy import Strategy
from hpc_launch.job.type_hints import NAME_PATTERN, Mebibytes, Scalar, Seconds, VariableName


class ProgressPatterns(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read the progress from the first node's log: regular expressions that are searched for in each line."""

    step: Annotated[
        str | None,
        Meta(
            description="Group 1 is the step; the optional group 2 is the last step.",
            examples=[r"step (\d+)/(\d+)"],
        ),
    ] = None
    loss: Annotated[str | None, Meta(description="Group 1 is the loss.", examples=[r"loss ([\d.]+)"])] = None


class JobSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training job."""

    name: Annotated[
        str,
        Meta(
            description="Name of the run and of its Slurm jobs: letters, digits, `.`, `_` and `-`.",
            pattern=NAME_PATTERN,
            max_length=64,
            examples=["tiny-gpt"],
        ),
    ]
    site: Annotated[
        str | None,
        Meta(
            description="Site profile, by name, or by file relative to the job file. `--site` overrides it. Default: "
            "detected."
        ),
    ] = None
    queue: Annotated[
        str | None, Meta(description="A queue of the site profile. Default: the site's default queue.")
    ] = None
    account: Annotated[str | None, Meta(description="Account to charge. Usually set in the user's overlay.")] = None
    options: Annotated[
        list[str],
        Meta(description="Entries of the site's `options:` to enable, such as a local disk.", examples=[["nvme"]]),
    ] = []
    constraint: Annotated[
        str | None, Meta(description="Node features to require, in addition to the site's own constraint.")
    ] = None
    nodes: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)]
        | Annotated[str, Meta(title="a range such as 2..4", pattern=r"^[1-9]\d{0,5}\.\.[1-9]\d{0,5}$")],
        Meta(
            description="Number of nodes. `2..4` makes the run elastic: it starts on up to four nodes and "
            "continues in the same job while at least two are left (torchrun only).",
            examples=[4],
        ),
    ] = 1
    spares: Annotated[
        int,
        Meta(
            description="Number of extra nodes that the job holds. A spare replaces a node that fails: the run "
            "continues in the same job (Slurm with srun), or in its next one (ssh). An elastic run may start with "
            "fewer spares.",
            ge=0,
            examples=[1],
        ),
    ] = 0
    gpus_per_node: Annotated[
        int | None, Meta(description="GPUs per node. Default: all of a node's GPUs.", ge=0, le=1000)
    ] = None
    gpus: Annotated[
        int | None,
        Meta(
            description="Total number of GPUs, distributed evenly over the nodes. An alternative to `gpus_per_node`.",
            ge=1,
        ),
    ] = None
    processes_per_node: Annotated[
        int | None, Meta(description="Processes per node. Default: one per GPU, or one on a CPU node.", ge=1, le=10_000)
    ] = None
    cpus_per_node: Annotated[
        int | None,
        Meta(
            description="CPUs per node. Default: all of a node's CPUs, or the share that belongs to the requested "
            "GPUs.",
            ge=1,
        ),
    ] = None
    memory: Annotated[
        Mebibytes | None,
        Meta(description="Memory per node, such as `64G`. 0 requests all of it. Default: the queue's rule."),
    ] = None
    time: Annotated[
        Seconds | None,
        Meta(
            description="Time limit in Slurm's formats: `24:00:00` is 24 hours, a plain number is minutes. `90m` "
            "and `1d12h` are also accepted. Default: the queue's.",
            examples=["02:00:00"],
        ),
    ] = None
    confirm_gpu_hours: Annotated[
        float | None,
        Meta(
            description="Ask before submitting a job that may use more GPU-hours than this: GPUs times `time`. Usually "
            "set in the user's overlay or in the site's `defaults:`. Default: never.",
            ge=0,
            examples=[500],
        ),
    ] = None
    launcher: Annotated[Launcher, Meta(description="Launcher that starts the processes.")] = Launcher(name="torchrun")
    strategy: Annotated[
        Strategy,
        Meta(description="How the training is distributed, and the configuration of the library that does it."),
    ] = Strategy(name="none")
    parallel: Annotated[
        Parallel | None, Meta(description="Model parallelism. hpc-launch checks it and passes it to Megatron as flags.")
    ] = None
    model: Annotated[
        Model | None,
        Meta(
            description="The model that is trained, for `plan` and the rules of `parallel`: a known name, a path, or "
            "its sizes.",
            examples=["llama3-8b"],
        ),
    ] = None
    precision: Annotated[
        Literal["fp32", "tf32", "fp16", "bf16", "fp8"] | None,
        Meta(description="Numeric precision, passed to the training in HPC_LAUNCH_PRECISION."),
    ] = None
    script: Annotated[
        str | None, Meta(description="The training's Python file, relative to the job file.", examples=["train.py"])
    ] = None
    module: Annotated[
        str | None, Meta(description="Python module to run instead of `script`, as with `python -m`.")
    ] = None
    command: Annotated[
        str | list[str] | None,
        Meta(
            description="Command to run instead of `script`: a list of words, or a string that is split like a "
            "shell command line. It is not run by a shell."
        ),
    ] = None
    args: Annotated[
        dict[str, Any] | list[Scalar],
        Meta(
            description="Arguments of the training. `KEY: VALUE` becomes `--KEY VALUE`; true adds the flag without "
            "a value; false and null omit it; a list repeats the values. A list of words is passed "
            "unchanged.",
            examples=[{"lr": 3e-4, "resume": "auto"}],
        ),
    ] = {}
    env: Annotated[
        dict[str, Scalar], Meta(description="Environment variables of the training. null unsets a variable.")
    ] = {}
    environment: Annotated[Environment, Meta(description="Modules, virtual environment and interpreter.")] = (
        Environment()
    )
    secrets: Annotated[
        list[VariableName],
        Meta(
            description="Variables to pass to the training without writing their values to any file of the run. "
            "The values come from the submitting shell or from `secrets.env` in the configuration "
            "folder (mode 0600)."
        ),
    ] = []
    trackers: Annotated[
        list[Tracker],
        Meta(
            description="Experiment trackers that the training logs to: `wandb`, `tensorboard`.", examples=[["wandb"]]
        ),
    ] = []
    container: Annotated[Container | None, Meta(description="Container image to run the training in.")] = None
    workdir: Annotated[
        str | None, Meta(description="Working directory of the training. Default: the job file's folder.")
    ] = None
    run_dir: Annotated[
        str | None,
        Meta(
            description="Parent of the run folders, on storage that login and compute nodes share. Default: the "
            "site's, then $HPC_LAUNCH_HOME, then `~/hpc-launch/runs`."
        ),
    ] = None
    code: Annotated[Code, Meta(description="Whether the run keeps a snapshot of the training's code.")] = Code()
    retry: Annotated[Retry, Meta(description="What to retry automatically when the run fails, and how often.")] = (
        Retry()
    )
    checkpoint: Annotated[
        Checkpoint,
        Meta(
            description="How to warn the training before its end, where its checkpoints are and how to resume from "
            "them."
        ),
    ] = Checkpoint()
    preflight: Annotated[
        Literal["quick", "full", "only", "off"],
        Meta(
            description="The check of each node before the training starts. A node that fails it is excluded, and the "
            "job continues elsewhere. `full` also measures each GPU and the network between the nodes. `only`: the job "
            "ends after the full check, as `hpc-launch doctor` uses it."
        ),
    ] = "quick"
    hang: Annotated[
        Hang, Meta(description="The watcher on each node, and when to treat a silent training as hanging.")
    ] = Hang()
    drill: Annotated[Drill, Meta(description="Overrides for `hpc-launch drill`.")] = Drill()
    progress: Annotated[ProgressPatterns, Meta(description="How to read the progress from the log.")] = (
        ProgressPatterns()
    )
    notify: Annotated[
        Notify | None,
        Meta(description="Messages about the run: when, and to whom ([details](notifications.md)). Default: none."),
    ] = None
    sweep: Annotated[
        Sweep | None, Meta(description="Runs that differ in some values: they become job arrays, a run for each point.")
    ] = None
    exclude: Annotated[list[str], Meta(description="Nodes to exclude, as Slurm host lists.")] = []
    sbatch: Annotated[
        dict[str, Scalar],
        Meta(
            description="Additional sbatch options by long name. true adds a flag without a value; null removes an "
            "option.",
            examples=[{"reservation": "tutorial", "mail-type": "END"}],
        ),
    ] = {}

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
