"""Apptainer and SingularityCE (apptainer-userdocs: environment_and_metadata, bind_paths_and_mounts, gpu)."""

from __future__ import annotations

from hpc_launch.images.runtimes.wrap_command import FROM_THE_JOB, CommandWrapper, Line
from hpc_launch.plan.launch_plan import ContainerPlan

GPU = {"nvidia": "--nv", "amd": "--rocm", None: None}

CLEANING = frozenset({"-e", "--cleanenv", "-C", "--containall"})
"""Options that clear the host's environment, including the launcher's variables (apptainer-exec(1))."""


def wrap(plan: ContainerPlan) -> CommandWrapper:
    """`apptainer exec … IMAGE`.

    Variables are passed as APPTAINERENV_NAME: otherwise the image's value would override the host's, and `--env` splits
    values at commas. `--no-eval` prevents their evaluation as shell code.
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
    return CommandWrapper(before=tuple(lines), exports=plan.variables, prefix=prefix)


def _handing_on(prefix: str) -> Line:
    """A shell on the node that exports the variables of the launcher and Slurm under the runtime's prefix."""
    names = " | ".join(FROM_THE_JOB)
    code = f'for n in $(compgen -e); do case $n in {names}) export "{prefix}$n=${{!n}}" ;; esac; done; exec "$@"'
    return (("bash",), ("-c",), (code,), ("bash",))
