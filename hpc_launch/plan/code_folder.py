"""The folder with the training's code, and how the script refers to files in it."""

from __future__ import annotations

import os.path

from msgspec import Struct

from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.spec.shell_text import Text, Var

CODE = Var("HPC_LAUNCH_CODE")


class CodePlan(Struct, frozen=True):
    """The folder that is copied at submission, and the patterns excluded from the copy."""

    root: str
    exclude: tuple[str, ...] = ()
    limit_mib: int = 100

    def as_json(self) -> dict[str, object]:
        """For plan.json."""
        return {"root": self.root, "exclude": list(self.exclude), "limit_mib": self.limit_mib}


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
