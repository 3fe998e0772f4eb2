"""hpc-launch: one YAML file in, a finished training run out, on any Slurm cluster.

`import hpc_launch as hl` gives the functions of the command line as a Python API (the page Python). Each name is
imported when it is first used.
"""

import sys

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hpc_launch.api.job_calls import explain as explain
    from hpc_launch.api.job_calls import layouts as layouts
    from hpc_launch.api.job_calls import plan as plan
    from hpc_launch.api.job_calls import render as render
    from hpc_launch.api.job_calls import run as run
    from hpc_launch.api.job_calls import submit as submit
    from hpc_launch.api.job_calls import sweep as sweep
    from hpc_launch.api.job_calls import validate as validate
    from hpc_launch.api.job_object import Job as Job
    from hpc_launch.api.run_calls import diagnose as diagnose
    from hpc_launch.api.run_calls import find as find
    from hpc_launch.api.run_calls import runs as runs
    from hpc_launch.api.run_calls import wait as wait
    from hpc_launch.api.run_object import Run as Run
    from hpc_launch.api.run_object import RunFailed as RunFailed
    from hpc_launch.base.errors import NotOver as NotOver
    from hpc_launch.base.errors import Refused as Refused
    from hpc_launch.base.errors import SchedulerError as SchedulerError
    from hpc_launch.base.errors import SubmitRefused as SubmitRefused
    from hpc_launch.base.errors import SubmitUnknown as SubmitUnknown
    from hpc_launch.base.errors import Unreachable as Unreachable
    from hpc_launch.base.errors import UsageError as UsageError
    from hpc_launch.base.errors import UserError as UserError
    from hpc_launch.base.findings import Finding as Finding
    from hpc_launch.base.findings import Place as Place
    from hpc_launch.prepare.job_plan import JobPlan as JobPlan
    from hpc_launch.runs.find_run import RunElsewhere as RunElsewhere
    from hpc_launch.runs.groups.pipeline_status import PipelineStatus as PipelineStatus
    from hpc_launch.runs.groups.sweep_status import SweepStatus as SweepStatus
    from hpc_launch.runs.status.run_status import RunStatus as RunStatus
    from hpc_launch.service.listener import Listener as Listener
    from hpc_launch.view.explanation import Explanation as Explanation

_NAMES = {
    "api.job_calls": "explain layouts plan render run submit sweep validate",
    "api.job_object": "Job",
    "api.run_calls": "diagnose find runs wait",
    "api.run_object": "Run RunFailed",
    "base.errors": "NotOver Refused SchedulerError SubmitRefused SubmitUnknown Unreachable UsageError UserError",
    "base.findings": "Finding Place",
    "prepare.job_plan": "JobPlan",
    "runs.find_run": "RunElsewhere",
    "runs.groups.pipeline_status": "PipelineStatus",
    "runs.groups.sweep_status": "SweepStatus",
    "runs.status.run_status": "RunStatus",
    "service.listener": "Listener",
    "view.explanation": "Explanation",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_MODULES)]  # noqa: PLE0604 - text, all of it


if not TYPE_CHECKING:  # which would take any name for one of the module's

    def __getattr__(name: str) -> "Any":
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(type(sys)):  # type: ignore[misc]  # the type of modules, without an import
    """`plan` and `runs` are functions here and packages, too, which Python would put into their place."""

    def __setattr__(self, name: str, value: "Any") -> None:
        if name not in _MODULES or not isinstance(value, type(sys)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
