"""The job file, typed: one field a key, each with what it is for. The docs and the JSON schema are made from here.

Every key may also come from the site's `defaults:`, the user's overlay or `--set`; `spec.merge` puts them together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.spec.checkpoint import Checkpoint, Drill
from hpc_launch.spec.code import Code
from hpc_launch.spec.container import Container
from hpc_launch.spec.field_types import NAME_PATTERN, Mebibytes, Scalar, Seconds
from hpc_launch.spec.hang import Hang
from hpc_launch.spec.launcher import Launcher
from hpc_launch.spec.parallel import Parallel
from hpc_launch.spec.retry import Retry
from hpc_launch.spec.software import Environment
from hpc_launch.spec.strategy import Strategy
from hpc_launch.spec.trackers import Tracker


class ProgressPatterns(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read the progress from the log of the first node: regular expressions, searched in each line."""

    step: Annotated[
        str | None,
        Meta(
            description="Group 1 is the step, group 2 (optional) the last step.",
            examples=[r"step (\d+)/(\d+)"],
        ),
    ] = None
    loss: Annotated[str | None, Meta(description="Group 1 is the loss.", examples=[r"loss ([\d.]+)"])] = None


class JobSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training job."""

    name: Annotated[
        str,
        Meta(
            description="What the run and the job are called: letters, digits, `.`, `_` and `-`.",
            pattern=NAME_PATTERN,
            max_length=64,
            examples=["tiny-gpt"],
        ),
    ]
    site: Annotated[
        str | None,
        Meta(description="The site profile, by name or file; `--site` goes before. Detected if nobody names one."),
    ] = None
    queue: Annotated[str | None, Meta(description="A queue of the site profile; the site's default if left out.")] = (
        None
    )
    account: Annotated[str | None, Meta(description="The account to charge. Usually in the user's overlay.")] = None
    options: Annotated[
        list[str], Meta(description="Entries of the site's `options:`, such as a local disk.", examples=[["nvme"]])
    ] = []
    constraint: Annotated[
        str | None, Meta(description="Features that the nodes must have; the site's own must hold too.")
    ] = None
    nodes: Annotated[
        Annotated[int, Meta(ge=1)]
        | Annotated[str, Meta(title="a range such as 2..4", pattern=r"^[1-9]\d{0,5}\.\.[1-9]\d{0,5}$")],
        Meta(
            description="How many nodes. `2..4` is an elastic run: it starts with four if it can get them and goes on "
            "while at least two are left (torchrun only).",
            examples=[4],
        ),
    ] = 1
    gpus_per_node: Annotated[int | None, Meta(description="GPUs on each node; all of a node if left out.", ge=0)] = None
    gpus: Annotated[
        int | None,
        Meta(description="GPUs in all, in place of `gpus_per_node`: spread evenly over the nodes.", ge=1),
    ] = None
    processes_per_node: Annotated[
        int | None, Meta(description="Processes on each node; one a GPU if left out, one on a CPU node.", ge=1)
    ] = None
    cpus_per_node: Annotated[
        int | None,
        Meta(description="CPUs on each node; if left out all of a node, or the share of the GPUs asked for.", ge=1),
    ] = None
    memory: Annotated[
        Mebibytes | None,
        Meta(description="Memory on each node, such as `64G`; 0 is all of it. If left out the queue's rule holds."),
    ] = None
    time: Annotated[
        Seconds | None,
        Meta(
            description="Time limit, as Slurm reads it: `24:00:00` is 24 hours, a plain number is minutes; `90m` and "
            "`1d12h` also go. The queue's default if left out.",
            examples=["02:00:00"],
        ),
    ] = None
    launcher: Annotated[Launcher, Meta(description="How the processes are started.")] = Launcher(name="torchrun")
    strategy: Annotated[
        Strategy, Meta(description="How the training is spread, and the configuration of the library that does it.")
    ] = Strategy(name="none")
    parallel: Annotated[
        Parallel | None, Meta(description="How the model is laid over the processes; checked, and Megatron's flags.")
    ] = None
    precision: Annotated[
        Literal["fp32", "tf32", "fp16", "bf16", "fp8"] | None,
        Meta(description="The number format; the training finds it in HPC_LAUNCH_PRECISION."),
    ] = None
    script: Annotated[
        str | None, Meta(description="The training's Python file, relative to the job file.", examples=["train.py"])
    ] = None
    module: Annotated[str | None, Meta(description="A Python module in place of `script`, as after `python -m`.")] = (
        None
    )
    command: Annotated[
        str | list[str] | None,
        Meta(
            description="A command in place of `script`: a list of words, or a text split into words as a shell "
            "splits them; no shell runs it."
        ),
    ] = None
    args: Annotated[
        dict[str, Any] | list[Scalar],
        Meta(
            description="Arguments. `KEY: VALUE` gives `--KEY VALUE`; true a bare flag; false and null leave it out; "
            "a list repeats the values. A list of words is handed on as it is.",
            examples=[{"lr": 3e-4, "resume": "auto"}],
        ),
    ] = {}
    env: Annotated[dict[str, Scalar], Meta(description="Environment variables of the training; null unsets one.")] = {}
    environment: Annotated[Environment, Meta(description="Modules, virtual environment, interpreter.")] = Environment()
    secrets: Annotated[
        list[str],
        Meta(
            description="Names of variables that reach the training and stand in no file of the run. Their values "
            "come from the submitting shell, or from `secrets.env` in the configuration folder (mode 0600)."
        ),
    ] = []
    trackers: Annotated[
        list[Tracker],
        Meta(description="Where the training's metrics go, by name: `wandb`, `tensorboard`.", examples=[["wandb"]]),
    ] = []
    container: Annotated[Container | None, Meta(description="The image that the training runs in.")] = None
    workdir: Annotated[
        str | None, Meta(description="The folder that the training starts in; the job file's own if left out.")
    ] = None
    run_dir: Annotated[
        str | None,
        Meta(
            description="Where run folders go: storage that login and compute nodes share. Default: the site's, else "
            "$HPC_LAUNCH_HOME, else `~/hpc-launch/runs`."
        ),
    ] = None
    code: Annotated[Code, Meta(description="Whether the run keeps a copy of the training's code.")] = Code()
    retry: Annotated[Retry, Meta(description="What is tried again by itself when the run fails, and how often.")] = (
        Retry()
    )
    checkpoint: Annotated[
        Checkpoint, Meta(description="How the training is warned before its end, what it saves, and how it goes on.")
    ] = Checkpoint()
    hang: Annotated[
        Hang, Meta(description="The watcher on each node, and when a training that says nothing counts as hanging.")
    ] = Hang()
    drill: Annotated[Drill, Meta(description="What differs from this job in `hpc-launch drill`.")] = Drill()
    progress: Annotated[ProgressPatterns, Meta(description="How to read progress from the log.")] = ProgressPatterns()
    exclude: Annotated[list[str], Meta(description="Nodes to keep off, as Slurm host lists.")] = []
    sbatch: Annotated[
        dict[str, Scalar],
        Meta(
            description="More sbatch options by their long names; true is a bare flag, null takes one away.",
            examples=[{"reservation": "tutorial", "mail-type": "END"}],
        ),
    ] = {}

    @property
    def most_nodes(self) -> int:
        """The nodes asked for."""
        return self.nodes if isinstance(self.nodes, int) else int(self.nodes.partition("..")[2])

    @property
    def fewest_nodes(self) -> int:
        """The nodes that an elastic run can do with; else as many as asked for."""
        return self.nodes if isinstance(self.nodes, int) else int(self.nodes.partition("..")[0])

    @property
    def elastic(self) -> bool:
        """Whether the run goes on with fewer nodes."""
        return self.fewest_nodes < self.most_nodes
