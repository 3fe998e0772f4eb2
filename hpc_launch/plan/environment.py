"""The environment of the training: software to set up, the variables in order, and the names that they may have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hpc_launch.base.findings import FindingCode
from hpc_launch.base.installed import shipped
from hpc_launch.job.document import KeyPath, rule
from hpc_launch.job.job import JobSpec
from hpc_launch.job.shell_text import RUNTIME
from hpc_launch.plan.launch_plan import LaunchPlan, Prelude, Variable, WatchPlan
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.plan.plan_draft import JobSize, PlanDraft, ValueFiller
from hpc_launch.plan.tracker_environment import tracker_variables
from hpc_launch.sites.job_settings import ConditionFacts
from hpc_launch.sites.queues import overlay_fabric

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_IN_SCRIPT = re.compile(r"(?:\$\{?[!#]?|(?<![-\w$])(?=\w+(?:\[[^]\n]*\])?\+?=))([a-z_][a-z0-9_]*)")


def is_script_variable(name: str) -> bool:
    """Whether slurm_templates/ use a variable. Bash evaluates some of them as arithmetic expressions, in which
    `a[$(command)]` runs the command; all others would be overwritten."""
    return name.islower() and (name.startswith("job_") or name in _script_variables())


@cache
def _script_variables() -> frozenset[str]:
    files = [path for path in shipped("slurm_templates").rglob("*") if path.suffix in (".sh", ".j2")]
    return frozenset(_IN_SCRIPT.findall("\n".join(path.read_text("utf-8") for path in files)))


def check_variable_names(draft: PlanDraft, plan: LaunchPlan) -> None:
    """HL204 for each variable of the plan, from whatever file, that the script cannot set."""
    for variable in _variables(plan):
        if not NAME.match(variable.name):
            message, hint = f"`{variable.name}` is not a valid variable name", "use letters, digits and `_`"
        elif is_script_variable(variable.name):
            message, hint = f"`{variable.name}` is a variable of the job script", "use another name"
        else:
            continue
        draft.fault_at(FindingCode.RESERVED_VARIABLE, message, variable.origin.place, hint)


def _variables(plan: LaunchPlan) -> Iterator[Variable]:
    around = plan.around
    yield from (*plan.variables, *plan.continuation.resume_variables, *around.rank_variables)
    for step in (*around.steps, *around.on_nodes, *around.inside, *around.node_steps):
        if step.variable is not None:
            yield step.variable


NCCL_INTERFACES, GLOO_INTERFACES = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"


def interface_variables(filler: ValueFiller) -> Iterator[Variable]:
    """Variables from `network.interface` of the profile: full names of interfaces."""
    resolved = filler.resolved
    if resolved.site.network.interface and resolved.site.scheduler.kind != "local":
        names, origin = ",".join(resolved.site.network.interface), resolved.site_origin("network", "interface")
        # Without `=` NCCL takes each name for a prefix (NCCL user guide, NCCL_SOCKET_IFNAME).
        yield Variable(NCCL_INTERFACES, (f"={names}",), origin)
        yield Variable(GLOO_INTERFACES, (names,), origin)


def fabric_variables(filler: ValueFiller, size: JobSize, about: ConditionFacts) -> Iterator[Variable]:
    """Variables from `fabric:` of the profile or of its node class."""
    fabric, own = overlay_fabric(filler.resolved.site.fabric, size.node_class.fabric)
    inside = about.runtime is not None
    topology = "topology_inside" if inside and fabric.topology_inside else "topology"
    for key, name in (
        ("nccl_interfaces", NCCL_INTERFACES),
        ("gloo_interfaces", GLOO_INTERFACES),
        ("family", "NCCL_SOCKET_FAMILY"),
        ("hca", "NCCL_IB_HCA"),
        ("net", "NCCL_NET"),
        ("plugin", "NCCL_NET_PLUGIN"),
        (topology, "NCCL_TOPO_FILE"),
    ):
        value = getattr(fabric, key)
        if value is None:
            continue
        path: KeyPath = ("node_classes", size.queue.node_class, "fabric", key) if key in own else ("fabric", key)
        text = ",".join(value) if isinstance(value, list) else value
        yield Variable(name, filler.site_text(text, path), filler.resolved.site_origin(*path))


_ATTEMPT = RUNTIME["attempt.dir"]


def watch(job: JobSpec) -> WatchPlan | None:
    """The watcher's settings; None if the job turns it off, or if its processes cannot be seen from the first node."""
    alone = descriptor(job.launcher.name).tasks == "program"
    if not job.hang.watch or (alone and job.max_nodes > 1):
        return None
    hang = job.hang
    return WatchPlan(hang.after or 0, hang.busy_after or 0, hang.sample_every, hang.phases and not alone, alone)


def debug_variables(gpus: bool) -> list[Variable]:
    """Variables that have no cost until something goes wrong.

    Python prints the stacks of all threads at a fatal signal (faulthandler); PyTorch keeps the last collectives of NCCL
    and writes them at a timeout or when the watcher asks (torch/csrc/distributed/c10d/FlightRecorder.hpp; the buffer's
    name changed in 2.5, and older releases ignore the newer one).
    """
    result = [Variable("PYTHONFAULTHANDLER", ("1",), rule("stacks of all threads at a fatal signal"))]
    if gpus:
        kept = rule("NCCL's last collectives, at a timeout")
        result += [
            Variable("TORCH_NCCL_TRACE_BUFFER_SIZE", ("2000",), kept),
            Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", ("1",), kept),
            Variable("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", (_ATTEMPT, "/agent/nccl-rank-"), kept),
            Variable("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", (_ATTEMPT, "/agent/nccl-ask-"), kept),
        ]
    return result


_SET_BY_LAUNCHERS = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT "
    "TORCHELASTIC_ERROR_FILE TORCHELASTIC_RUN_ID BASH_ENV ENV".split()
)


def prelude(filler: ValueFiller) -> tuple[Prelude, ...]:
    """Source files, modules, conda, venv, always in this order."""
    env, resolved = filler.resolved.job.environment, filler.resolved
    steps: list[Prelude] = []
    for index, name in enumerate(env.source):
        path: KeyPath = ("environment", "source", index)
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
    if size.cpus_per_node is not None:
        cores = size.cpus_per_node // size.node_class.threads_per_core // size.processes_per_node
        loading = data_workers(job)
        why = f"cores of a node / processes on it{f', less {loading} data workers' if loading else ''}"
        result.append(Variable("OMP_NUM_THREADS", (str(max(cores - loading, 1)),), rule(why)))
    if descriptor(job.launcher.name).prefixes_ranks:
        # In all releases since 2.0 (torch/distributed/elastic/multiprocessing/api.py).
        prefix = ("[rank${rank}]: ",)
        result.append(Variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", prefix, rule("names the rank of each line")))
    result = latest([*result, *strategy, *tracker_variables(filler), *of_site])
    result.extend(interface_variables(filler))
    result.extend(job_variables(filler, job.env, ("env",)))
    return tuple(latest(result))


def job_variables(filler: ValueFiller, values: Mapping[str, Any], where: KeyPath) -> Iterator[Variable]:
    """The variables that the job file has at `where`, with a finding for each that a job may not set."""
    for name, value in values.items():
        path = (*where, name)
        if check_variable_name(filler, name, path):
            text = None if value is None else filler.text(value, path)
            yield Variable(name, text, filler.resolved.origin(*path))


_DATA_WORKERS = frozenset({"num_workers", "dataloader_num_workers", "data_workers", "workers"})
"""Arguments of Megatron, Transformers and timm, and usual ones of own trainings."""


def data_workers(job: JobSpec) -> int:
    """Processes that load data for each process, as the arguments of the training state them; otherwise 0."""
    args = job.args
    pairs = args.items() if isinstance(args, dict) else zip(args, [*args[1:], None], strict=True)
    for name, following in pairs:
        option, _, value = str(name).lstrip("-").partition("=")
        number = value or str(following)
        if option.replace("-", "_") in _DATA_WORKERS and number.isdecimal():
            return int(number)
    return 0


def latest(variables: Sequence[Variable]) -> list[Variable]:
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
    if name in _SET_BY_LAUNCHERS or name.startswith(("SLURM_", "SBATCH_", "HPC_LAUNCH_")):
        message, hint = f"`{name}` is set by the launcher or the scheduler", "leave it out"
        filler.fault(FindingCode.RESERVED_VARIABLE, message, path, hint)
        return False
    return True
