"""The folder with the training's code, and how the script refers to files in it."""

from __future__ import annotations

import os.path

from hpc_launch.job.shell_text import Text, Var
from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.recorded_parts import CodePlan

CODE = Var("HPC_LAUNCH_CODE")


def code(filler: ValueFiller) -> CodePlan | None:
    """The folder of the job file, or of the script if that is elsewhere; None if nothing is copied."""
    job = filler.resolved.job
    if job.script is None or job.code.snapshot == "off":
        return None
    script = filler.file(job.script, ("script",))
    root = filler.absolute(filler.resolved.job_folder)
    if not script.startswith(f"{root}/"):
        root = os.path.dirname(script)
    if root in ("/", filler.absolute(filler.resolved.names["home"])):
        return None  # a whole home directory is never copied
    return CodePlan(root, tuple(job.code.exclude), job.code.limit)


def script_word(filler: ValueFiller, plan: CodePlan | None) -> Text:
    """The path of `script:` inside the job."""
    path = filler.file(filler.resolved.job.script or "", ("script",))
    return (path,) if plan is None else (CODE, path.removeprefix(plan.root))
