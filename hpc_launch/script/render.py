"""Render the script from the plan and `slurm_templates/`. The same plan always gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from hpc_launch import __version__
from hpc_launch.job.shell_text import Text, Var, quote
from hpc_launch.plan.environment import GLOO_INTERFACES, NCCL_INTERFACES
from hpc_launch.plan.launch_plan import CopyPlan, LaunchPlan
from hpc_launch.plan.launchers.descriptor import LauncherDescriptor, descriptor
from hpc_launch.runtimes.container_runtimes import CommandWrapper, wrap_command
from hpc_launch.script.parts import MARKER, TASK_MARK, checks_programs, part, part_names, runtime_digest
from hpc_launch.script.template_environment import template_environment


def render_array(plan: LaunchPlan) -> str:
    """The script of an array whose points all have this plan's Slurm options."""
    template = template_environment().get_template("array.sh.j2")
    return template.render(plan=plan, version=__version__, task_mark=TASK_MARK)


_WIDTH = 116

_BY_EXIT_FILES = ("pdsh", "ibrun", "mpirun", "ssh")
"""Steps whose exit code is not sufficient: each command writes its own exit code to a file."""


def render(plan: LaunchPlan, *, standalone: bool = False) -> str:
    """The whole script; `standalone`: with the parts that it needs of `runtime.sh` in itself.

    An undefined name in a template is an error, never empty text (StrictUndefined).
    """
    launcher, container = descriptor(plan.launcher), wrap_command(plan.container)
    original, stage = plan, plan.stage
    if stage is not None and stage.original and plan.container is None:
        plan = replace(plan, python=(Var(stage.name),))
    elif stage is not None and stage.original:
        copy = {stage.original: (Var(stage.name),)}  # the variable, in place of the image
        before = (tuple(copy.get(word, word) for word in line) for line in container.before)
        container = replace(container, before=tuple(before))
    tasks, parts = launcher.tasks_per_node(plan.processes_per_node), part_names(plan, launcher, container)
    late = {variable.name for variable in plan.continuation.resume_variables}
    roles = [(role.name, render(role.plan)) for role in plan.roles]
    job = (
        template_environment()
        .get_template("job.sh.j2")
        .render(
            plan=plan,
            version=__version__,
            by_hand="sbatch FILE" if plan.scheduler == "slurm" else "bash FILE",
            tasks_per_node=tasks,
            processes='"${job_slots[node]}"' if plan.uneven else str(plan.processes_per_node),
            first_rank="${job_first_ranks[node]}" if plan.uneven else f"$((node * {plan.processes_per_node}))",
            node_rank=f"${_node_rank(plan)}",
            node_address=_address(plan) if plan.rendezvous == "c10d" and plan.step.kind != "local" else "127.0.0.1",
            marker=MARKER,
            parts=_wrapped_lines(() if standalone else parts),
            digest=runtime_digest(),
            each_process=launcher.logs_by_rank,
            has_start=plan.step.kind not in ("local", "once", "ssh", "roles"),
            role_scripts=[{"name": name, "script": script} for name, script in roles],
            role_records=",\n".join(f"{json.dumps(role.name)}: {json.dumps(role.record)}" for role in plan.roles),
            role_end=_end_of_roles([script for _, script in roles]),
            local_hosts=" ".join(launcher.local_hosts(plan.nodes)) if launcher.local_hosts else "",
            numbers=_wrapped_lines(_numbers(original, tasks, launcher)),
            image_variables=_wrapped_lines([name for name in container.exports if name not in late]),
            resume_exports=[name for name in container.exports if name in late],
            cpus_per_task=_cpus_per_task(plan, tasks),
            local_gpus=_local_gpus(plan),
            container=container,
            inside_ranks=plan.around.rank_variables if launcher.rank_variables == "within" else (),
            each_rank=plan.around.rank_variables if launcher.rank_variables == "each_rank" else (),
            into_container=_prefix(_before(plan, launcher, container)),
            into_image=_prefix(_into_image(plan, launcher, container)),
        )
    )
    return job + ("".join(map(part, parts)) if standalone else "")


def _end_of_roles(scripts: Iterable[str]) -> str:
    """The end of a here-document that no line of the scripts is."""
    lines, end = {line for script in scripts for line in script.splitlines()}, "END_OF_ROLE"
    while end in lines:
        end += "_"
    return end


_HOOKS = """/bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"'"""
"""An image may set PYTHONPATH; only a shell inside the container can extend it."""


def _prefix(lines: Iterable[str]) -> str:
    return "".join(f"{words} \\\n        " for words in lines)


def _before(plan: LaunchPlan, launcher: LauncherDescriptor, container: CommandWrapper) -> list[str]:
    """The commands that precede the launcher on a node, one per line."""
    guard = ['bash "$HPC_LAUNCH_ATTEMPT_DIR/guard.sh"'] if plan.continuation.guarded else []
    watch = ['bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh"'] if plan.watch is not None else []
    return [*guard, *watch, *_into_image(plan, launcher, container)]


def _into_image(plan: LaunchPlan, launcher: LauncherDescriptor, container: CommandWrapper) -> list[str]:
    """Those of them that start a command in the image, as the site sets it up."""
    image = [" ".join(map(quote, line)) for line in container.before]
    ranks = launcher.rank_variables == "within" and plan.around.rank_variables
    within = ['bash "$HPC_LAUNCH_ATTEMPT_DIR/within.sh"'] if plan.around.inside or ranks else []
    return [*image, *([_HOOKS] if plan.container is not None else []), *within]


def _local_gpus(plan: LaunchPlan) -> str:
    """Each "node" of a local run gets its own share of this machine's GPUs, as under Slurm."""
    node, own = ("(HPC_LAUNCH_ROLE_FIRST_NODE + node)" if plan.role else "node"), plan.role_gpus
    first, of = (own.first, own.of) if own is not None else (0, plan.gpus_per_node)
    devices = ",".join(f"$(({node} * {of} + {first + gpu}))" for gpu in range(plan.gpus_per_node))
    return f"export CUDA_VISIBLE_DEVICES={devices}"


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_GPU_VARIABLES = (*_VISIBLE, "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL")
"""Set per node, unless the job sets them."""


def _numbers(plan: LaunchPlan, tasks: int, launcher: LauncherDescriptor) -> Iterator[str]:
    """Assignments that the static part reads, as words of a line."""
    yield f"job_nodes={plan.nodes}"
    if plan.chooses_nodes:
        yield f"job_spares={plan.spares}"
    if plan.elastic:
        yield f"job_fewest_nodes={plan.fewest_nodes}"
    if launcher.reads_hostfile and not plan.hosts:
        yield f"job_processes_per_node={plan.processes_per_node}"
    if checks_programs(plan):
        yield f"job_programs=({' '.join(map(quote, _programs(plan, launcher)))})"
    if plan.step.kind == "srun" and (cpus := _cpus_per_task(plan, tasks)):
        yield f"job_cpus_per_task={cpus}"
    if plan.time_limit_s:
        yield f"job_time_limit={plan.time_limit_s}"
    if plan.continuation.guarded:
        yield f"job_warn='{plan.continuation.warn}'"
    if plan.watch is not None:
        yield f"job_node_rank={_node_rank(plan)}"
        times = f"--hang-after={plan.watch.hang_after_s} --busy-after={plan.watch.busy_after_s}"
        times += f" --sample-every={plan.watch.sample_every_s}{' --program' if plan.watch.program else ''}"
        yield f"job_watch=({times}{' --heartbeat' if plan.heartbeat else ''})"
        yield f"job_phases={'yes' if plan.watch.phases else ''}"
    if plan.notify is not None:
        yield f"job_notify={quote(plan.notify.secret or '')}"
    if plan.node_check is not None:
        yield f"job_check=({' '.join(map(quote, plan.node_check.expects))})"
        if plan.node_check.only:
            yield "job_check_only=yes"
        if plan.node_check.gpus_per_task:
            yield f"job_check_gpus={plan.node_check.gpus_per_task}"
        elif plan.uneven and plan.gpus_per_node:
            yield _array("job_check_gpus", [host.slots for host in plan.hosts])
    if plan.step.ordered:
        yield f"job_ordered_tasks={tasks}"
    yield from _host_arrays(plan, launcher)
    if plan.copies is not None:
        yield from _copies(plan.copies)
    if plan.step.kind in _BY_EXIT_FILES:
        yield f"job_step={plan.step.kind}"
        if plan.step.kind == "pdsh" or (plan.step.kind == "ssh" and launcher.logs_by_rank):
            yield f"job_processes={plan.world_size}"
        if plan.step.kind in ("ibrun", "mpirun"):
            yield f"job_tasks_per_node={tasks}"
            yield "job_each_process=" + ("yes" if launcher.logs_by_rank else "''")
        names = {variable.name for variable in plan.variables}
        if own := [name for name in _GPU_VARIABLES if name in names]:
            yield f"job_gpu_variables={','.join(own)}"


def _host_arrays(plan: LaunchPlan, launcher: LauncherDescriptor) -> Iterator[str]:
    """Arrays with a value for each host: those that the job needs."""
    if not plan.hosts:
        return
    yield _array("job_hosts", [host.name for host in plan.hosts])
    if not plan.shared_hosts:
        yield "job_lease=yes"
    if plan.spares:
        yield f"job_spares={plan.spares}"
        yield _array("job_spare_hosts", [host.name for host in plan.spare_hosts])
    if plan.rendezvous == "c10d" or plan.roles or plan.role or (plan.node_check is not None and plan.nodes > 1):
        yield _array("job_addresses", [host.address for host in plan.hosts])
    if plan.uneven or launcher.reads_hostfile or launcher.logs_by_rank:
        slots = [host.slots for host in plan.hosts]
        yield _array("job_slots", slots)
        yield _array("job_first_ranks", [sum(slots[:node]) for node in range(len(slots))])
    names = {variable.name for variable in plan.variables}
    if names.isdisjoint(_GPU_VARIABLES) and any(host.devices for host in plan.hosts):
        yield _array("job_devices", [",".join(map(str, host.devices)) for host in plan.hosts])
    interfaces = [host.interface for host in plan.hosts]
    alike = plan.step.kind != "once" or len(set(interfaces)) == 1  # the program hands on what its own host has
    if names.isdisjoint((NCCL_INTERFACES, GLOO_INTERFACES)) and any(interfaces) and alike:
        yield _array("job_interfaces", interfaces)


def _copies(copies: CopyPlan) -> Iterator[str]:
    """Options of the program that copies the run to its hosts."""
    options = [f"--copy-workdir={copies.limit_mib << 20}", *(f"--exclude={pattern}" for pattern in copies.exclude)]
    yield _array(
        "job_copies", [*(options if copies.workdir else ()), "--"]
    )  # bash takes an empty array for an unset one
    if copies.own_checkpoints:
        yield "job_own_checkpoints=yes"


def _array(name: str, values: Iterable[object]) -> str:
    words = (f"'{value}'" if "," in str(value) else quote(str(value)) for value in values)  # as ShellCheck wants commas
    return f"{name}=({' '.join(words)})"


def _programs(plan: LaunchPlan, launcher: LauncherDescriptor) -> list[Text]:
    """What each node starts. A command in a Python environment may start its interpreter only later."""
    if plan.program.kind != "command":
        return [plan.python]
    starter = [] if launcher.logs_by_rank else [plan.python]
    in_environment = any(step.kind in ("venv", "conda") for step in plan.prelude)
    return [*starter, plan.program.words[0], *([("python",)] if in_environment else [])]


def _cpus_per_task(plan: LaunchPlan, tasks: int) -> int | None:
    return max(plan.cpus_per_node // tasks, 1) if plan.cpus_per_node else None


def _node_rank(plan: LaunchPlan) -> str:
    """The variable with the number of the node, on it."""
    return "SLURM_NODEID" if plan.step.kind == "srun" and not plan.step.ordered else "HPC_LAUNCH_NODE"


def _wrapped_lines(words: Iterable[str]) -> list[str]:
    """Wrap words into lines."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) < _WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _address(plan: LaunchPlan) -> str:
    """The address of the node itself, by the rule for the first node."""
    if plan.hosts:
        return "${job_addresses[node]}"
    name = "${SLURMD_NODENAME}" if plan.step.kind == "srun" else "${hosts[HPC_LAUNCH_NODE]}"
    if plan.master.interface is not None:
        return f"$(own_address {plan.master.interface})"
    if plan.master.resolve != "name":
        return f'$(address_of "{name}{plan.master.suffix}")'
    return name + plan.master.suffix
