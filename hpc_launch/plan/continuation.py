"""How a run continues: where its checkpoints are, when one is complete, and what to add when one is found."""

from __future__ import annotations

import re

from hpc_launch.base.findings import FindingCode
from hpc_launch.base.patterns import compiled
from hpc_launch.job.shell_text import CHECKPOINT, RUNTIME, Text, Var, plain
from hpc_launch.plan.environment import job_variables
from hpc_launch.plan.launch_plan import Continuation
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.plan.recorded_parts import CheckpointPlan

RUN_DIR = RUNTIME["run.dir"]


FORMATS = {
    # transformers/trainer.py, _save_checkpoint: the state is the last file that rank 0 writes.
    "huggingface": CheckpointPlan(pattern=r"checkpoint-(\d+)", complete=("trainer_state.json",)),
    # lightning/pytorch/callbacks/model_checkpoint.py: `epoch=3-step=120.ckpt`, put renamed into place when complete.
    "lightning": CheckpointPlan(pattern=r".*step=(\d+).*\.ckpt"),
    # deepspeed/runtime/engine.py, save_checkpoint: `latest` is written after rank 0 has written its part.
    "deepspeed": CheckpointPlan(pattern=r"global_step(\d+)", latest="latest"),
}
"""How libraries name their checkpoints."""


def continuation(filler: ValueFiller) -> Continuation:
    """How the job is warned and continues, with a finding for each setting that cannot be used."""
    asked = filler.resolved.job.checkpoint
    return Continuation(
        warn=asked.warn,
        guarded=asked.signal_before is not None or asked.warn != "file",
        checkpoint=_checkpoint(filler),
        followed=asked.follow,
        resume_variables=tuple(job_variables(filler, asked.resume.env, ("checkpoint", "resume", "env"))),
    )


def _checkpoint(filler: ValueFiller) -> CheckpointPlan | None:
    """Where checkpoints are; None if the job does not say, or with a finding if the setting cannot be used."""
    asked = filler.resolved.job.checkpoint
    known = FORMATS[asked.format] if asked.format else CheckpointPlan()
    pattern = asked.pattern or known.pattern
    if asked.dir is None:
        if pattern or asked.complete or asked.latest or asked.resume.args or asked.resume.env:
            message, hint = "the checkpoint folder is not set", "add `dir:`, for example `dir: ${run.dir}/checkpoints`"
            filler.fault(FindingCode.CHECKPOINTS_NOT_LOCATED, message, ("checkpoint",), hint)
        return None
    if not pattern:
        message, hint = "the name pattern of checkpoints is not set", r"add `pattern: 'step-(\d+)'`, or a `format`"
        filler.fault(FindingCode.CHECKPOINTS_NOT_LOCATED, message, ("checkpoint", "dir"), hint)
        return None
    folder = _folder(filler, asked.dir)
    usable = _is_pattern(filler, pattern)
    complete = tuple(filler.static(name, ("checkpoint", "complete", at)) for at, name in enumerate(asked.complete))
    latest = filler.static(asked.latest, ("checkpoint", "latest")) if asked.latest else None
    for name, path in [*((name, ("checkpoint", "complete")) for name in complete), (latest, ("checkpoint", "latest"))]:
        if name is not None and (not name or name.startswith("/") or ".." in name.split("/")):
            inside = "a checkpoint" if path[1] == "complete" else "the folder"
            message = f"`{name}` is not a relative path inside {inside}"
            hint = "write a relative path such as `trainer_state.json`"
            filler.fault(FindingCode.INVALID_CHECKPOINT_PATTERN, message, path, hint)
    if folder is None or not usable:
        return None
    return CheckpointPlan(
        dir=tuple(part if isinstance(part, str) else None for part in folder),
        pattern=pattern,
        complete=complete or known.complete,
        latest=latest or known.latest,
    )


def _folder(filler: ValueFiller, asked: str) -> Text | None:
    path = ("checkpoint", "dir")
    text = filler.text(asked, path)
    foreign = [part.name for part in text if isinstance(part, Var) and part != RUN_DIR]
    if foreign:
        inside = next(f"${{{name}}}" for name, var in {**RUNTIME, **CHECKPOINT}.items() if var.name == foreign[0])
        message = f"{inside} differs between attempts, so the next attempt would not find the checkpoints"
        filler.fault(FindingCode.CHECKPOINTS_PER_ATTEMPT, message, path, "use ${run.dir}")
        return None
    return (filler.absolute(text[0]), *text[1:]) if text and isinstance(text[0], str) else text or None


def _is_pattern(filler: ValueFiller, pattern: str) -> bool:
    message, hint = None, r"such as 'step-(\d+)'"
    if re.fullmatch(r"[\w.?-]*(?<![.])\*[\w.*?-]*", pattern):
        message = f"`{pattern}` is a pattern of file names; `pattern` is a regular expression"
        first, *rest = re.escape(pattern).replace(r"\-", "-").replace(r"\?", ".").split(r"\*")
        hint = f"write '{first}(\\d+){'.*'.join(rest)}'"
    try:
        groups = compiled(pattern).groups
        if groups > 1:
            message = f"`{pattern}` has {groups} groups; at most one, for the step, is allowed"
        elif "/" in pattern:
            message = f"`{pattern}` has a `/`; it is compared with the names in the folder"
    except re.error as error:
        message = message or f"`{pattern}` is not a valid regular expression: {error}"
    if message is not None:
        filler.fault(FindingCode.INVALID_CHECKPOINT_PATTERN, message, ("checkpoint", "pattern"), hint)
    return message is None


def stripe(filler: ValueFiller, runs_folder: str, checkpoint: CheckpointPlan | None) -> tuple[str, ...]:
    """Options of `lfs setstripe` for the checkpoint folder: those of the site's folder that it is in."""
    place = "" if checkpoint is None else checkpoint.folder(runs_folder)
    for name, folder in filler.resolved.site.paths.items():
        above = plain(filler.site_text(folder.path, ("paths", name, "path"))) if folder.stripe else None
        if above and place.startswith(f"{above.rstrip('/')}/"):
            return tuple(folder.stripe.split())
    return ()
