"""`checkpoint:` and `drill:` of a job file: how the training is warned, what it saves, and how it goes on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.spec.field_types import Duration, Scalar


class Resume(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is added where a checkpoint is found at the start of an attempt. `${checkpoint.path}`, `${checkpoint.name}`
    and `${checkpoint.step}` stand for the newest whole one."""

    args: Annotated[
        dict[str, Any] | list[Scalar],
        Meta(
            description="Arguments, in the forms of the job's `args`; they come after those.",
            examples=[{"resume_from_checkpoint": "${checkpoint.path}"}],
        ),
    ] = {}
    env: Annotated[dict[str, Scalar], Meta(description="Environment variables; null unsets one.")] = {}


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the training is warned before its end, what it saves, and how the next attempt goes on from there."""

    signal_before: Annotated[
        Duration | None,
        Meta(
            description="How long before the time limit the file named by HPC_LAUNCH_STOP_FILE appears. Slurm may "
            "be up to a minute early (sbatch(1), --signal).",
            examples=["5m"],
        ),
    ] = None
    warn: Annotated[
        Literal["file", "USR1", "USR2", "TERM", "INT", "HUP"],
        Meta(
            description="What the training gets at the warning: the file alone, or a signal to each of its Python "
            "processes too, never to torchrun or DeepSpeed's launcher."
        ),
    ] = "file"
    format: Annotated[
        Literal["huggingface", "lightning", "deepspeed"] | None,
        Meta(description="Whose checkpoints these are: fills in `pattern`, `complete` and `latest` where left out."),
    ] = None
    dir: Annotated[
        str | None,
        Meta(description="The folder with the checkpoints.", examples=["${run.dir}/checkpoints"]),
    ] = None
    pattern: Annotated[
        str | None,
        Meta(
            description="Regular expression for the whole name of a checkpoint, a folder or a file in `dir`. Group 1 "
            "is its step; without a group the newest by time counts.",
            examples=[r"step-(\d+)"],
        ),
    ] = None
    complete: Annotated[
        list[str],
        Meta(
            description="Files that a whole checkpoint has, none of them empty; `*` stands for any text. Files that "
            "torch.save wrote are looked at in any case: a torn one lacks its end.",
            examples=[["trainer_state.json"]],
        ),
    ] = []
    latest: Annotated[
        str | None,
        Meta(
            description="A file in `dir` that names the newest whole checkpoint, as DeepSpeed's `latest`. What is "
            "newer than that counts as torn."
        ),
    ] = None
    resume: Annotated[
        Resume, Meta(description="Arguments and variables that make the training go on from a checkpoint.")
    ] = Resume()


class Drill(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What differs from the job in `hpc-launch drill`."""

    set: Annotated[
        dict[str, Any],
        Meta(
            description="Values of the job file by their dotted keys, as `--set` takes them.",
            examples=[{"time": "00:10:00", "nodes": 1}],
        ),
    ] = {}
    after: Annotated[
        Duration, Meta(description="How long after the first step the training is warned.", examples=["10s"])
    ] = 5
