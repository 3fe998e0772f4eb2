"""`checkpoint:` and `hang:` of a job file: where a training saves, and the watcher with its hang detection."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.job.type_hints import Duration, Scalar, short_form


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
