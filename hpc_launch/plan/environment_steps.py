"""The environment of the training: the steps that set up software, and the variables in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.document import KeyPath
from hpc_launch.job.origin import rule
from hpc_launch.job.secret_names import SECRET_NAME
from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.plan.network_variables import interface_variables
from hpc_launch.plan.plan_parts import Prelude, Variable
from hpc_launch.plan.tracker_environment import tracker_variables
from hpc_launch.plan.variable_names import NAME
from hpc_launch.plan.watcher_plan import debug_variables

_SET_BY_LAUNCHERS = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT "
    "TORCHELASTIC_ERROR_FILE TORCHELASTIC_RUN_ID BASH_ENV ENV".split()
)


def prelude(filler: ValueFiller) -> tuple[Prelude, ...]:
    """Source files, modules, conda, venv, always in this order."""
    env, resolved = filler.resolved.job.environment, filler.resolved
    steps: list[Prelude] = []
    path: KeyPath
    for index, name in enumerate(env.source):
        path = ("environment", "source", index)
        steps.append(Prelude("source", (filler.file(name, path),), resolved.origin(*path)))
    steps += module_steps(filler, env.modules, ("environment", "modules"))
    if env.conda is not None:
        path = ("environment", "conda")
        steps.append(Prelude("conda", (filler.static(env.conda, path),), resolved.origin(*path)))
    if env.venv is not None:
        path = ("environment", "venv")
        steps.append(Prelude("venv", (filler.file(env.venv, path),), resolved.origin(*path)))
    return tuple(steps)


def module_steps(filler: ValueFiller, names: Sequence[str], key: KeyPath) -> Iterator[Prelude]:
    """The modules that the job loads by this key."""
    for at, name in enumerate(names):
        path = (*key, at)
        if name.startswith("-"):
            message, hint = f"`{name}` is not a module name", "list the modules to load, by name"
            filler.fault(FindingCode.INVALID_MODULE, message, path, hint)
        yield Prelude("module", (filler.static(name, path),), filler.resolved.origin(*path))


def variables(
    filler: ValueFiller, size: JobSize, strategy: Sequence[Variable] = (), of_site: Sequence[Variable] = ()
) -> tuple[Variable, ...]:
    """Variables of hpc-launch, the strategy, the site profile and the job, in this order; later ones win."""
    job, resolved = filler.resolved.job, filler.resolved
    result = [Variable("PYTHONUNBUFFERED", ("1",), rule("a line of the log appears when it is printed"))]
    result += debug_variables(bool(size.gpus_per_node))
    if job.strategy.name != "none":
        result.append(Variable("HPC_LAUNCH_STRATEGY", (job.strategy.name,), resolved.origin("strategy", "name")))
    if job.precision is not None:
        result.append(Variable("HPC_LAUNCH_PRECISION", (job.precision,), resolved.origin("precision")))
    if job.container is not None:
        leak = rule("packages in the home are not the image's")
        result.append(Variable("PYTHONNOUSERSITE", ("1",), leak))
    threads = _threads(size)
    if threads is not None:
        result.append(Variable("OMP_NUM_THREADS", (str(threads),), rule("cores of a node / processes on it")))
    if descriptor(job.launcher.name).prefixes_ranks:
        # In all releases since 2.0 (torch/distributed/elastic/multiprocessing/api.py).
        prefix = ("[rank${rank}]: ",)
        result.append(Variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", prefix, rule("names the rank of each line")))
    result = _latest([*result, *strategy, *tracker_variables(filler), *of_site])
    result.extend(interface_variables(filler))
    for name, value in job.env.items():
        path: KeyPath = ("env", name)
        if not check_variable_name(filler, name, path):
            continue
        if SECRET_NAME.search(name) and isinstance(value, str) and value:
            message = f"`{name}` looks like a secret and would stand in the script"
            filler.fault(
                FindingCode.SECRET_IN_ENV, message, path, f"list it: `secrets: [{name}]`, and set it in your shell"
            )
            continue
        text = None if value is None else filler.text(value, path)
        result.append(Variable(name, text, resolved.origin(*path)))
    return tuple(_latest(result))


def _latest(variables: Sequence[Variable]) -> list[Variable]:
    """Those that no later one replaces."""
    replaced: set[str] = set()
    kept: list[Variable] = []
    for variable in reversed(variables):
        if variable.name not in replaced:
            kept.append(variable)
            if not variable.before:
                replaced.add(variable.name)
    return kept[::-1]


def check_variable_name(filler: ValueFiller, name: str, path: KeyPath) -> bool:
    """Whether a job may set the variable `name`; a finding where it may not."""
    if not NAME.match(name):
        filler.fault(
            FindingCode.RESERVED_VARIABLE, f"`{name}` cannot be the name of a variable", path, "letters, digits and `_`"
        )
        return False
    if name in _SET_BY_LAUNCHERS or name.startswith(("SLURM_", "SBATCH_", "HPC_LAUNCH_")):
        filler.fault(
            FindingCode.RESERVED_VARIABLE, f"`{name}` is set by the launcher or the scheduler", path, "leave it out"
        )
        return False
    return True


def _threads(size: JobSize) -> int | None:
    if size.cpus_per_node is None:
        return None
    return max(size.cpus_per_node // size.node_class.threads_per_core // size.processes_per_node, 1)
