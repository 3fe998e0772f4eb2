"""The job file's keys: one typed, documented field per key. The reference page and the JSON schema are generated from
it.

Each key may also be set by the site's `defaults:`, the user's overlay or `--set`; `job.merge` combines these layers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from hpc_launch.job.container import Code, Container, Data, Environment
from hpc_launch.job.group_keys import Role, Sweep
from hpc_launch.job.launcher import Launcher, Parallel, Strategy
from hpc_launch.job.model import Model
from hpc_launch.job.retry import Retry
from hpc_launch.job.type_hints import NAME_PATTERN, Duration, Mebibytes, Scalar, Seconds, VariableName, short_form

NotifyEvent = Literal["start", "first_step", "end", "stop", "no_progress"]
WebhookFormat = Literal["slack", "mattermost", "teams", "ntfy", "json"]


class Webhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A web address that gets a POST request for each message. It is a secret: who has it can write to the channel."""

    secret: Annotated[str, Meta(examples=["SLACK_URL"])]
    """Name of the variable with the address. Its value comes from the submitting shell or from `secrets.env` in the
    configuration folder (mode 0600), and is written to no file of the run."""
    format: WebhookFormat = "json"
    """What the other side expects."""

    __short_forms__ = short_form("`webhook: HOOK_URL`: the variable with the address.", {str: "secret"})


class Notify(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages about a run. Each is sent once, by whichever sees the event first: the job itself, or a monitor."""

    events: list[NotifyEvent] = []
    """`start`: the job runs. `first_step`: its log shows a step (needs `progress.step`). `end`: the run is over.
    `stop`: it stopped, and a person must act. `no_progress`: nothing new for too long. Default: all."""
    no_progress: Annotated[Duration, Meta(ge=1)] = 1200
    """How long there may be no new step before a message; no output, without `progress.step`."""
    mail: Annotated[str | None, Meta(pattern=r"^[A-Za-z0-9_+.%-]+(@[A-Za-z0-9.-]+)?$", examples=["me@example.org"])] = (
        None
    )
    """Address for Slurm's own mails (`--mail-user`). They are about jobs, and cover `start`, `end` and `stop`."""
    webhook: Webhook | None = None
    """A webhook."""
    command: Annotated[list[str], Meta(examples=[["~/bin/tell-me"]])] = []
    """A program and its arguments. It gets the event as JSON on standard input, and 10 seconds."""
    each_point: bool = False
    """Send messages about each point of a sweep. Default: about the sweep as a whole."""

    __short_forms__ = short_form("`notify: me@example.org`: Slurm's mails to this address.", {str: "mail"})

    @property
    def wanted(self) -> tuple[str, ...]:
        """The events that are told."""
        return tuple(dict.fromkeys(self.events or get_args(NotifyEvent)))


class Tracker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An experiment tracker that the training writes to. hpc-launch sets the variables that it needs on the site."""

    name: Literal["wandb", "tensorboard", "mlflow", "neptune"]
    """`wandb` is Weights & Biases; `tensorboard` writes files to the run folder. All attempts continue one run of
    the tracker ([continuation](how-to/continuation.md#one-run-of-the-tracker))."""
    mode: Literal["online", "offline"] | None = None
    """wandb: `online` sends data while the job runs; `offline` writes to the run folder for a later `wandb sync`.
    Default: as the site's `internet` allows."""

    __short_forms__ = short_form("`trackers: [wandb]`.", {str: "name"})


class Resume(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments and variables added when the attempt starts from a checkpoint. `${checkpoint.path}`,
    `${checkpoint.name}` and `${checkpoint.step}` refer to the newest complete checkpoint."""

    args: Annotated[
        dict[str, Any] | list[Scalar], Meta(examples=[{"resume_from_checkpoint": "${checkpoint.path}"}])
    ] = {}
    """Arguments to append to the job's `args`, in the same forms."""
    env: dict[str, Scalar] = {}
    """Environment variables to set. null unsets a variable."""


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to warn the training before its end, where its checkpoints are and how to resume from them."""

    signal_before: Annotated[Duration | None, Meta(examples=["5m"])] = None
    """How long before the time limit to create the file named by HPC_LAUNCH_STOP_FILE. Slurm may signal up to a
    minute early (sbatch(1), --signal)."""
    warn: Literal["file", "USR1", "USR2", "TERM", "INT", "HUP"] = "file"
    """How to warn the training: `file` creates the stop file only; a signal name also sends that signal to each of
    the training's Python processes, but not to torchrun or the DeepSpeed launcher."""
    format: Literal["huggingface", "lightning", "deepspeed"] | None = None
    """Checkpoint format. Provides defaults for `pattern`, `complete` and `latest`."""
    dir: Annotated[str | None, Meta(examples=["${run.dir}/checkpoints"])] = None
    """Checkpoint folder."""
    pattern: Annotated[str | None, Meta(examples=[r"step-(\d+)"])] = None
    """Regular expression that matches the whole name of a checkpoint, a folder or a file in `dir`. Group 1 is its
    step. Without a group, the newest by modification time is used."""
    complete: Annotated[list[str], Meta(examples=[["trainer_state.json"]])] = []
    """Files that a complete checkpoint contains, none of them empty. `*` matches any text. Files written by
    torch.save are always checked: a truncated one has no end record."""
    latest: str | None = None
    """A file in `dir` that names the newest complete checkpoint, like DeepSpeed's `latest`. Newer checkpoints are
    treated as incomplete."""
    follow: bool = False
    """Look for new checkpoints while the training runs, for the stages of a pipeline that run for each of them. A
    pipeline sets it."""
    resume: Resume = Resume()
    """Arguments and variables that make the training resume from a checkpoint."""


class Drill(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Overrides for `hpc-launch drill`."""

    set: Annotated[dict[str, Any], Meta(examples=[{"time": "00:10:00", "nodes": 1}])] = {}
    """Values to override, by dotted key, as in `--set`."""
    after: Annotated[Duration, Meta(examples=["10s"])] = 5
    """How long after the first step to warn the training."""


class Hang(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The watcher on each node: it records which process died first, samples the node and stops a hanging training."""

    watch: bool = True
    """Run a watcher on each node. It only needs `python3` on the nodes."""
    after: Annotated[Duration | None, Meta(examples=["30m"])] = 1800
    """Stop the job as hanging after this long without a log line from any node and without an active process. The
    watcher writes a stack trace for every rank first. null disables this check."""
    busy_after: Duration | None = 7200
    """The same limit while processes are active: a rank waiting in NCCL keeps its core and GPU busy. Choose a value
    longer than the training's longest silence. null disables this check."""
    sample_every: Annotated[Duration, Meta(ge=1)] = 30
    """Interval between samples of memory, GPUs and network."""
    phases: bool = True
    """Report the phases of the start on each node. A `sitecustomize.py` on the PYTHONPATH of the job tells the
    watcher when PyTorch is imported and when the rendezvous and the first collective begin and end. It runs the
    sitecustomize of the site or the virtual environment first."""

    __short_forms__ = short_form(
        "`hang: 20m`; `hang: false` disables the watcher.", {str: "after", int: "after", bool: "watch"}
    )


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
    """CPUs per node, which its processes share. Default: all of a node's CPUs, or the share that belongs to the
    requested GPUs."""
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
    data: Annotated[Data | None, Meta(examples=["${paths.scratch}/imagenet.tar"])] = None
    """Training data to copy to the nodes, or to mount there ([data](how-to/launching.md#data-on-the-nodes))."""
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
    """Messages about the run: when, and to whom ([notifications](how-to/notifications.md)). Default: none."""
    roles: Annotated[dict[str, Role], Meta(examples=[{"train": {"script": "train.py", "ends": "job"}}])] = {}
    """Several programs in one job, by name ([roles](how-to/roles.md)). The job's other keys are those of each role,
    unless it has its own."""
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
