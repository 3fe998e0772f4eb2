"""`checkpoint:` and `hang:` of a job file: where a training saves, and the watcher with its hang detection."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.job.type_hints import Duration, Scalar


class Resume(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments and variables added when the attempt starts from a checkpoint. `${checkpoint.path}`,
    `${checkpoint.name}` and `${checkpoint.step}` refer to the newest complete checkpoint."""

    args: Annotated[
        dict[str, Any] | list[Scalar],
        Meta(
            description="Arguments to append to the job's `args`, in the same forms.",
            examples=[{"resume_from_checkpoint": "${checkpoint.path}"}],
        ),
    ] = {}
    env: Annotated[dict[str, Scalar], Meta(description="Environment variables to set. null unsets a variable.")] = {}


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to warn the training before its end, where its checkpoints are and how to resume from them."""

    signal_before: Annotated[
        Duration | None,
        Meta(
            description="How long before the time limit to create the file named by HPC_LAUNCH_STOP_FILE. Slurm "
            "may signal up to a minute early (sbatch(1), --signal).",
            examples=["5m"],
        ),
    ] = None
    warn: Annotated[
        Literal["file", "USR1", "USR2", "TERM", "INT", "HUP"],
        Meta(
            description="How to warn the training: `file` creates the stop file only; a signal name also sends "
            "that signal to each of the training's Python processes, but not to torchrun or the "
            "DeepSpeed launcher."
        ),
    ] = "file"
    format: Annotated[
        Literal["huggingface", "lightning", "deepspeed"] | None,
        Meta(description="Checkpoint format. Provides defaults for `pattern`, `complete` and `latest`."),
    ] = None
    dir: Annotated[
        str | None,
        Meta(description="Checkpoint folder.", examples=["${run.dir}/checkpoints"]),
    ] = None
    pattern: Annotated[
        str | None,
        Meta(
            description="Regular expression that matches the whole name of a checkpoint, a folder or a file in "
            "`dir`. Group 1 is its step. Without a group, the newest by modification time is used.",
            examples=[r"step-(\d+)"],
        ),
    ] = None
    complete: Annotated[
        list[str],
        Meta(
            description="Files that a complete checkpoint contains, none of them empty. `*` matches any text. "
            "Files written by torch.save are always checked: a truncated one has no end record.",
            examples=[["trainer_state.json"]],
        ),
    ] = []
    latest: Annotated[
        str | None,
        Meta(
            description="A file in `dir` that names the newest complete checkpoint, like DeepSpeed's `latest`. "
            "Newer checkpoints are treated as incomplete."
        ),
    ] = None
    follow: Annotated[
        bool,
        Meta(
            description="Look for new checkpoints while the training runs, for the stages of a pipeline that run for "
            "each of them. A pipeline sets it."
        ),
    ] = False
    resume: Annotated[
        Resume, Meta(description="Arguments and variables that make the training resume from a checkpoint.")
    ] = Resume()


class Drill(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Overrides for `hpc-launch drill`."""

    set: Annotated[
        dict[str, Any],
        Meta(
            description="Values to override, by dotted key, as in `--set`.",
            examples=[{"time": "00:10:00", "nodes": 1}],
        ),
    ] = {}
    after: Annotated[
        Duration, Meta(description="How long after the first step to warn the training.", examples=["10s"])
    ] = 5


class Hang(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The watcher on each node: it records which process died first, samples the node and stops a hanging training."""

    watch: Annotated[bool, Meta(description="Run a watcher on each node. It only needs `python3` on the nodes.")] = True
    after: Annotated[
        Duration | None,
        Meta(
            description="Stop the job as hanging after this long without a log line from any node and without an "
            "active process. The watcher writes a stack trace for every rank first. null disables this "
            "check.",
            examples=["30m"],
        ),
    ] = 1800
    busy_after: Annotated[
        Duration | None,
        Meta(
            description="The same limit while processes are active: a rank waiting in NCCL keeps its core and GPU "
            "busy. Choose a value longer than the training's longest silence. null disables this check.",
        ),
    ] = 7200
    sample_every: Annotated[
        Duration, Meta(description="Interval between samples of memory, GPUs and network.", ge=1)
    ] = 30
    phases: Annotated[
        bool,
        Meta(
            description="Report the phases of the start on each node. A `sitecustomize.py` on the PYTHONPATH of the "
            "job tells the watcher when PyTorch is imported and when the rendezvous and the first collective begin and "
            "end. It runs the sitecustomize of the site or the virtual environment first."
        ),
    ] = True

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`hang: 20m`; `hang: false` disables the watcher."""
        if isinstance(value, bool):
            return {"watch": value}
        return {"after": value} if isinstance(value, str | int) else None
