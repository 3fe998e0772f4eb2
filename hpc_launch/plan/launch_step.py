"""The step that starts the command of each node, by site and launcher, and srun's binding options.

What is started: the training's script, module or command, its arguments as words, and the folder of its code.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from hpc_launch.base.findings import FindingCode
from hpc_launch.job.document import KeyPath
from hpc_launch.job.shell_text import Text, Var
from hpc_launch.job.type_hints import Scalar
from hpc_launch.plan.job_size import srun_options
from hpc_launch.plan.launch_plan import Entry, Line, Program, StepPlan
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.plan.plan_draft import JobSize, PlanDraft, ValueFiller
from hpc_launch.plan.recorded_parts import CodePlan
from hpc_launch.plugins.entry_points import guarded
from hpc_launch.runtimes.container_runtimes import ContainerPlan
from hpc_launch.sites.network import Binding, MasterAddress

CODE = Var("HPC_LAUNCH_CODE")


def code(filler: ValueFiller) -> CodePlan | None:
    """The git work tree that holds the script, or the folder of the job file if the script is inside it.

    None if nothing is copied: a script reads and imports what is beside it, and only these folders are sure to have it.
    """
    job = filler.resolved.job
    if job.script is None or job.code.snapshot == "off":
        return None
    script = filler.file(job.script, ("script",))
    whole = ("/", filler.absolute(filler.resolved.names["home"]))  # a whole home directory is never copied
    root = _work_tree(os.path.dirname(script), whole)
    if root is None:
        root = filler.absolute(filler.resolved.job_folder)
        if not script.startswith(f"{root}/") or root in whole:
            return None
    return CodePlan(root, tuple(job.code.exclude), job.code.limit)


def _work_tree(folder: str, ends: Collection[str]) -> str | None:
    """The git work tree that holds a folder, searched below the folders `ends`; None for none.

    One of others counts only if the folder is theirs: they may create it in a folder above that they can write to.
    """
    with suppress(OSError):
        owners = {os.getuid(), os.stat(folder).st_uid}
        while folder not in ends and os.path.dirname(folder) != folder:
            with suppress(FileNotFoundError):
                if os.lstat(os.path.join(folder, ".git")).st_uid in owners:
                    return folder
            folder = os.path.dirname(folder)
    return None


def program(filler: ValueFiller, flags: Sequence[Entry] = ()) -> Program | None:
    """The program, or None with a finding where the job names none or several. `flags` go before its arguments."""
    job = filler.resolved.job
    named = [key for key in ("script", "module", "command") if getattr(job, key) is not None]
    if len(named) != 1:
        if not named:
            hint = "add `script: train.py`, or `module:`/`command:`"
            filler.fault(FindingCode.NOT_ONE_PROGRAM, "no program to run", (), hint)
        else:
            both = " and ".join(f"`{key}`" for key in named)
            filler.fault(FindingCode.NOT_ONE_PROGRAM, f"{both} both name a program", (named[1],), "keep one of them")
        return None
    kind = named[0]
    before = (((flag.key,),) if flag.value is None else ((flag.key,), (flag.value,)) for flag in flags)
    lines = (*before, *argument_lines(filler, job.args, ("args",)))
    first: tuple[Text, ...]
    if job.script is not None:
        path, copied = filler.file(job.script, ("script",)), code(filler)
        first = ((path,) if copied is None else (CODE, path.removeprefix(copied.root)),)
    elif job.module is not None:
        first = (filler.text(job.module, ("module",)),)
    else:
        first = _command(filler)
    return Program(
        kind=kind,  # type: ignore[arg-type]
        words=first,
        argument_lines=lines,
        resume_lines=tuple(argument_lines(filler, job.checkpoint.resume.args, ("checkpoint", "resume", "args"))),
    )


def _command(filler: ValueFiller) -> tuple[Text, ...]:
    command = filler.resolved.job.command
    if isinstance(command, str):
        try:
            split = shlex.split(command)
        except ValueError as error:
            message = f"`command` cannot be split into words: {error}"
            filler.fault(FindingCode.INVALID_COMMAND, message, ("command",), "close the quote")
            split = []
        parts = tuple(filler.text(word, ("command",)) for word in split)
    else:
        parts = tuple(filler.text(word, ("command", index)) for index, word in enumerate(command or ()))
    if not parts:
        filler.fault(FindingCode.INVALID_COMMAND, "`command` holds no word", ("command",))
    return parts


def argument_lines(filler: ValueFiller, args: dict[str, Any] | list[Scalar], where: KeyPath) -> Iterator[Line]:
    """The arguments that stand at `where` in the job file, an option with its values on a line."""
    if isinstance(args, list):
        for index, value in enumerate(args):
            yield (filler.text(value, (*where, index)),)
        return
    for key, value in args.items():
        path: KeyPath = (*where, key)
        option = key if key.startswith("-") else f"--{key}"
        if value is True:
            yield ((option,),)
        elif isinstance(value, list):
            yield ((option,), *(_value(filler, item, (*path, index)) for index, item in enumerate(value)))
        elif value is not None and value is not False:
            yield ((option,), _value(filler, value, path))


def _value(filler: ValueFiller, value: Any, path: KeyPath) -> Text:
    if isinstance(value, dict | list):
        hint = "for JSON write it in quotes"
        filler.fault(FindingCode.INVALID_ARGUMENT, "an argument's value is a word or a list of words", path, hint)
        return ("",)
    return filler.text(value, path)


TO_ONE = {
    "cpu_bind": ("rank", "map_cpu", "map_ldom", "rank_ldom"),
    "mem_bind": ("rank", "map_mem"),
    "gpu_bind": ("closest", "single", "per_task", "map", "mask", "map_gpu", "mask_gpu"),
}
"""Binding types that restrict a task to one CPU, one NUMA node or some of the GPUs (srun(1))."""

LISTS = frozenset("map_cpu mask_cpu map_ldom mask_ldom map_mem mask_mem map mask map_gpu mask_gpu".split())
"""Binding types that take one entry per task of a node."""


def step(draft: PlanDraft, size: JobSize, container: ContainerPlan | None) -> StepPlan:
    """The step, with a finding for each setting that it does not support."""
    site, mine = draft.resolved.site, descriptor(draft.resolved.job.launcher.name)
    with guarded("launchers", mine.name, draft.resolved.origin("launcher").place):
        own = mine.own_step(draft, size, container) if mine.own_step is not None else None
    if own is not None:
        return own
    if site.scheduler.kind == "local":
        return StepPlan("local")
    if site.scheduler.type == "ssh":
        _check_without_srun(draft, container, "ssh")
        return StepPlan("ssh")
    launch = site.launch
    if launch.step != "srun":
        _check_without_srun(draft, container, launch.step)
        return StepPlan(
            launch.step,
            options=tuple(launch.mpirun_options) if launch.step == "mpirun" else (),
            hydra=launch.mpirun == "hydra",
        )
    job, role = draft.resolved.job, draft.resolved.role
    return StepPlan(
        "srun",
        options=(*launch.srun_options, *srun_options(draft, size), *_bindings(draft, size)),
        # torchrun itself orders the nodes of an elastic run, and those of a role are part of the job's.
        ordered=launch.node_order == "switches" and job.max_nodes > 2 and not job.elastic and not role,
    )


def spares(draft: PlanDraft, launch_step: StepPlan, options: Collection[str], *, shared_folders: bool) -> int:
    """Number of spare nodes, with a finding where the job cannot use them. A local run has none."""
    job, scheduler = draft.resolved.job, draft.resolved.site.scheduler
    if scheduler.kind == "local":
        return 0
    ends_with_node = "no-kill" not in options
    if job.elastic and ends_with_node:
        removed = "an elastic run needs `--no-kill`, which the site removes"
        draft.fault(FindingCode.STEP_NOT_ELASTIC, removed, ("nodes",), "set a fixed number of nodes")
    if not job.spares:
        return 0
    message, hint = None, "remove `spares`"
    if scheduler.type == "ssh":
        hint = "remove `spares`: the next attempt takes another host of the site without them, too"
        if scheduler.shared:
            message = "spares are leased, but the profile lets other runs use the same hosts (`shared: true`)"
        elif not shared_folders:
            message = "spares need folders that all hosts share"
    elif launch_step.kind != "srun":
        message = f"spares need nodes that srun starts, not {launch_step.kind}"
    elif ends_with_node:
        message = "spares need `--no-kill`, which the site removes"
    if message is not None:
        draft.fault(FindingCode.SPARES_NOT_POSSIBLE, message, ("spares",), hint)
    return job.spares


def master(draft: PlanDraft) -> MasterAddress:
    """The rule for the address of the first node; a finding if its settings contradict each other."""
    rule, message, hint = draft.resolved.site.network.master, "", ""
    if rule.interface is not None and (rule.suffix or rule.resolve != "name"):
        message = "`interface` uses the address of an interface, so `suffix` and `resolve` have no effect"
        hint = "keep either `interface` or the other two"
    elif draft.resolved.hosts and rule != MasterAddress():
        message = "the address of a host without Slurm is in `scheduler.hosts`, so `network.master` has no effect"
        hint = "set `scheduler: {hosts: {NAME: {address: ADDRESS}}}`, and remove `master`"
    if message:
        draft.site_fault(FindingCode.CONFLICTING_RENDEZVOUS_RULES, message, ("network", "master"), hint)
    return rule


def _check_without_srun(draft: PlanDraft, container: ContainerPlan | None, kind: str) -> None:
    site, job = draft.resolved.site, draft.resolved.job
    if job.elastic:
        message = f"site {site.name} starts nodes with {kind}, which ends all nodes when one is lost"
        draft.fault(FindingCode.STEP_NOT_ELASTIC, message, ("nodes",), "set a fixed number of nodes")
    if container is not None and container.started_by_srun:
        message = f"{container.runtime} needs srun, but site {site.name} starts nodes with {kind}"
        draft.fault(FindingCode.RUNTIME_NEEDS_SRUN, message, ("container",), "use another runtime, such as `apptainer`")
    for key in ("cpu_bind", "mem_bind", "gpu_bind", "gpus_per_task", "gpu_sharing", "srun_options"):
        value = getattr(site.launch, key)
        if value not in (Binding(), False, []):
            message = f"`{key}` applies to srun only, but `step` is {kind}"
            hint = "remove it" if kind != "mpirun" else "remove it, or set `mpirun_options`"
            draft.site_fault(FindingCode.SRUN_OPTION_WITHOUT_SRUN, message, ("launch", key), hint)


def _bindings(draft: PlanDraft, size: JobSize) -> list[str]:
    launch = draft.resolved.site.launch
    whole_node = descriptor(draft.resolved.job.launcher.name).tasks == "node"
    options = []
    for key in ("cpu_bind", "mem_bind", "gpu_bind"):
        binding: Binding = getattr(launch, key)
        value = binding.node if whole_node else binding.process
        if key == "cpu_bind" and not whole_node and rank_binding(draft, size) is not None:
            value = "none"  # Slurm divides a node's CPUs without regard to the GPUs
        if value is None or (key == "gpu_bind" and not size.gpus_per_node) or _is_for_a_whole_node(size, value):
            continue
        words = [word for word in value.split(",") if word not in ("verbose", "v", "quiet", "q")]
        if whole_node and words and words[0].partition(":")[0] in TO_ONE[key]:
            message = f"`{value}` restricts the single task that starts all processes of the node to a part of it"
            path = ("launch", key, "node")
            draft.site_fault(FindingCode.BINDING_HIDES_RESOURCES, message, path, "say `none`, or keep it for `process`")
        options.append(f"--{key.replace('_', '-')}={value}")
    if whole_node or not size.gpus_per_node:
        return options
    if launch.gpus_per_task:
        if size.gpus_per_node % size.processes_per_node:
            message = f"{size.gpus_per_node} GPUs cannot be divided among {size.processes_per_node} processes"
            draft.fault(FindingCode.GPUS_PER_TASK_UNEVEN, message, ("processes_per_node",), "use one process a GPU")
        options.append(f"--gpus-per-task={max(size.gpus_per_node // size.processes_per_node, 1)}")
    if launch.gpu_sharing:
        options.append("--gres-flags=allow-task-sharing")
    return options


_BIND = ("--cpu-bind", "--gpu-bind", "--tres-bind", "--hint", "--gpus-per-task", "--ntasks-per-gpu")
"""Options of srun that bind its tasks (srun(1))."""


def rank_binding(draft: PlanDraft, size: JobSize) -> Entry | None:
    """The mode of `parts/bind_ranks.sh`; None where another program binds, or it cannot divide the CPUs of a node."""
    resolved, mine = draft.resolved, descriptor(draft.resolved.job.launcher.name)
    site, job, launch = resolved.site, resolved.job, resolved.site.launch
    options = (f"--{size.node_class.gpu_request}", *launch.srun_options, *srun_options(draft, size))
    free = mine.rank_variables is not None and mine.tasks == "node"
    if mine.tasks == "process":  # each sees the GPUs of all, and knows its own by LOCAL_RANK
        free = launch.step != "ibrun" and launch.cpu_bind.process is None and launch.gpu_bind.process in (None, "none")
        free = free and not launch.gpus_per_task and not any(option.startswith(_BIND) for option in options)
    gpu_each = 0 < size.processes_per_node <= size.gpus_per_node and size.node_class.gpu_vendor != "intel"
    # Others, who divide the CPUs for themselves, may run on the same node.
    others = resolved.role or site.scheduler.shared or (site.scheduler.kind == "local" and job.max_nodes > 1)
    mode = "off" if job.launcher.numa_binding else launch.numa_binding or "exclusive"
    if mode == "off" or others or not gpu_each or not free:
        return None
    return Entry("binding", mode, resolved.site_origin("launch", "numa_binding"))


def _is_for_a_whole_node(size: JobSize, value: str) -> bool:
    """Whether a list of CPUs or GPUs is useless because the job gets only some GPUs of a node, anywhere on it.

    LUMI's guide: masks are valid on full nodes only. Slurm refuses a mask with CPUs outside the job.
    """
    part = 0 < size.gpus_per_node < size.node_class.gpus and not size.queue.whole_nodes
    return part and any(word.partition(":")[0] in LISTS for word in value.split(","))
