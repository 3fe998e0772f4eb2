"""A script that starts a plan's processes on each host by hand, without a scheduler and without hpc-launch. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.job.shell_text import quote
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.runtimes.container_runtimes import wrap_command
from hpc_launch.script.parts import part
from hpc_launch.script.template_environment import template_environment
from hpc_launch.sites.network import JobHost

MASTER_PORT = 29500
"""torchrun's default."""


class HandStart(Struct, frozen=True):
    """How to start a plan by hand: the script, and the hosts to start it on, whose places are its argument."""

    script: str
    hosts: tuple[JobHost, ...]
    started: tuple[JobHost, ...]
    """Those on which to start it: the first one alone where a program there starts the others."""
    master_addr: str
    master_port: int


def start_by_hand(
    plan: LaunchPlan, nodes: Sequence[str] = (), port: int | None = None, rank: int | None = None
) -> HandStart:
    """The script of a plan. Raises UsageError for a plan that only its scheduler can start.

    Args: plan: the plan. nodes: the names of its nodes, where a scheduler would choose them. port: the rendezvous port.
    rank: the node that the script starts without an argument.
    """
    container, mine = wrap_command(plan.container), descriptor(plan.launcher)
    if container.step or plan.around.rank_variables or (plan.container is not None and plan.around.inside):
        why = "srun starts its image" if container.step else f"site {plan.site} sets up each process"
        raise UsageError(f"the job cannot be started by hand: {why}", "run `hpc-launch render` for the whole script")
    hosts = plan.hosts or _nodes(plan, nodes)
    started = hosts[:1] if plan.step.kind in ("once", "pdsh") else hosts
    slots = [host.slots for host in hosts]
    first, last = plan.ports
    port = port or (MASTER_PORT if first <= MASTER_PORT <= last else first)
    private = any(step.kind == "private_folder" for step in (*plan.around.steps, *plan.around.on_nodes))
    before = " ".join(" ".join(map(quote, line)) for line in container.before)
    script = (
        template_environment()
        .get_template("by_hand.sh.j2")
        .render(
            plan=plan,
            hosts=hosts,
            started=started,
            rank=rank,
            first_ranks=[sum(slots[:node]) for node in range(len(slots))],
            master_addr=hosts[0].address,
            master_port=port,
            interfaces=[host.interface for host in hosts] if any(host.interface for host in hosts) else [],
            devices=[",".join(map(str, host.devices)) for host in hosts] if any(host.devices for host in hosts) else [],
            parts="".join(part(name) for name in ("in_place", "private_folder")) if private else "",
            exports=container.exports,
            resume_exports=[],
            prefix=container.prefix,
            reads_hostfile=mine.reads_hostfile or plan.step.kind == "once",
            into_container=f"{before} " if before else "",
        )
    )
    return HandStart(script, hosts, started, hosts[0].address, port)


def hostfile_of(hosts: Sequence[JobHost]) -> tuple[str, str]:
    """A host file in DeepSpeed's format, and the `--include` filter that it needs; '' if it needs none."""
    # A filter names slots of the file, which therefore lists all up to the highest one.
    lines = [f"{host.name} slots={max(host.devices) + 1 if host.devices else host.slots}\n" for host in hosts]
    names = [f"{host.name}:{','.join(map(str, host.devices))}" if host.devices else host.name for host in hosts]
    return "".join(lines), "@".join(names) if any(host.devices for host in hosts) else ""


def _nodes(plan: LaunchPlan, names: Sequence[str]) -> tuple[JobHost, ...]:
    """The nodes that a scheduler chose."""
    if plan.scheduler == "local":
        names = names or ["127.0.0.1"] * plan.nodes
    if len(names) != plan.nodes:
        hint = "add --hosts 'n[1-4]' with the nodes of the job, or run this inside it"
        raise UsageError(f"the plan has {plan.nodes} nodes, and {len(names)} are known", hint)
    return tuple(JobHost(name, plan.processes_per_node, f"{name}{plan.master.suffix}") for name in names)
