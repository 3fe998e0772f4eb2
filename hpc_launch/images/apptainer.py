"""Apptainer and SingularityCE (apptainer-userdocs: environment_and_metadata, bind_paths_and_mounts, gpu)."""

from __future__ import annotations

from hpc_launch.images.api import Line, Wrapped
from hpc_launch.plan.types import ContainerPlan

GPU = {"nvidia": "--nv", "amd": "--rocm", None: None}


def wrap(plan: ContainerPlan) -> Wrapped:
    """`apptainer exec … IMAGE`.

    Variables go by APPTAINERENV_NAME, since an image's own value otherwise beats the host's, and `--env` splits values
    at commas; `--no-eval` keeps them from being evaluated as shell text.
    """
    first = [plan.runtime, "exec", "--no-eval"]
    gpu = GPU[plan.gpus]
    first += [option for option in (gpu, None if plan.home else "--no-home") if option]
    first += ["--writable-tmpfs"] if plan.writable else []
    lines: list[Line] = [tuple((word,) for word in first), (("--pwd",), (plan.workdir,))]
    lines += [(("--bind",), bind) for bind in plan.binds]
    lines += [((option,),) for option in plan.options]
    lines.append(((plan.image,),))
    prefix = "APPTAINERENV_" if plan.runtime == "apptainer" else "SINGULARITYENV_"
    return Wrapped(before=tuple(lines), exports=tuple((prefix + name, name) for name in plan.variables))
