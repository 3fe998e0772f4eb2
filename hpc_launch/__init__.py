"""hpc-launch: one YAML file in, a finished training run out, on any Slurm cluster.

`import hpc_launch as hl` gives the functions of the command line as a Python API (the page Python). Each name is
imported when it is first used.
"""

import sys

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hpc_launch.api.explanation import Explanation
    from hpc_launch.api.job_calls import explain, layouts, plan, render, run, submit, sweep, validate
    from hpc_launch.api.job_object import Job
    from hpc_launch.api.run_calls import diagnose, find, runs, wait
    from hpc_launch.api.run_object import Run, RunFailed
    from hpc_launch.base.errors import (
        NotOver,
        Refused,
        SchedulerError,
        SubmitRefused,
        SubmitUnknown,
        Unreachable,
        UsageError,
        UserError,
    )
    from hpc_launch.base.findings import Finding, Place
    from hpc_launch.prepare.job_plan import JobPlan
    from hpc_launch.runs.find_run import RunElsewhere
    from hpc_launch.runs.groups.pipeline_status import PipelineStatus
    from hpc_launch.runs.groups.sweep_status import SweepStatus
    from hpc_launch.runs.status.run_status import RunStatus
    from hpc_launch.service.listener import Listener

_NAMES = {
    "api.explanation": "Explanation",
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
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Explanation",
    "Finding",
    "Job",
    "JobPlan",
    "Listener",
    "NotOver",
    "PipelineStatus",
    "Place",
    "Refused",
    "Run",
    "RunElsewhere",
    "RunFailed",
    "RunStatus",
    "SchedulerError",
    "SubmitRefused",
    "SubmitUnknown",
    "SweepStatus",
    "Unreachable",
    "UsageError",
    "UserError",
    "__version__",
    "diagnose",
    "explain",
    "find",
    "layouts",
    "plan",
    "render",
    "run",
    "runs",
    "submit",
    "sweep",
    "validate",
    "wait",
]


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
