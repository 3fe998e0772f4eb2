"""Apptainer and SingularityCE (apptainer-userdocs: environment_and_metadata, bind_paths_and_mounts, gpu)."""

from __future__ import annotations

from hpc_launch.images.wrapped import FROM_THE_JOB, Line, Wrapped
from hpc_launch.plan.launch_plan import ContainerPlan

GPU = {"nvidia": "--nv", "amd": "--rocm", None: None}

CLEANING = frozenset({"-e", "--cleanenv", "-C", "--containall"})
"""Options after which nothing of the host's environment comes in, the launcher's own variables among it
(apptainer-exec(1))."""


def wrap(plan: ContainerPlan) -> Wrapped:
    """`apptainer exec … IMAGE`.

    Variables go by APPTAINERENV_NAME, since an image's own value otherwise beats the host's, and `--env` splits values
    at commas; `--no-eval` keeps them from being evaluated as shell text.
    """
    first = [plan.runtime, "exec", "--no-eval"]
    gpu = GPU[plan.gpus]
    first += [option for option in (gpu, None if plan.home else "--no-home") if option]
    first += ["--writable-tmpfs"] if plan.writable else []
    prefix = "APPTAINERENV_" if plan.runtime == "apptainer" else "SINGULARITYENV_"
    lines: list[Line] = [] if CLEANING.isdisjoint(plan.options) else [_handing_on(prefix)]
    lines += [tuple((word,) for word in first), (("--pwd",), (plan.workdir,))]
    lines += [(("--bind",), bind) for bind in plan.binds]
    lines += [((option,),) for option in plan.options]
    lines.append(((plan.image,),))
    return Wrapped(before=tuple(lines), exports=plan.variables, prefix=prefix)


def _handing_on(prefix: str) -> Line:
    """A shell before the runtime, on the node: what the launcher and Slurm set there goes in by the runtime's names."""
    names = " | ".join(FROM_THE_JOB)
    code = f'for n in $(compgen -e); do case $n in {names}) export "{prefix}$n=${{!n}}" ;; esac; done; exec "$@"'
    return (("bash",), ("-c",), (code,), ("bash",))
