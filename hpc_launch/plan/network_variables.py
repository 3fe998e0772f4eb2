"""Environment variables that tell NCCL and Gloo which network to use."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_launch.job.document import KeyPath
from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.plan_parts import Variable
from hpc_launch.sites.conditions import ConditionFacts
from hpc_launch.sites.node_classes import overlay_fabric

NCCL_INTERFACES, GLOO_INTERFACES = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"


def interface_variables(filler: ValueFiller) -> Iterator[Variable]:
    """Variables from `network.interface` of the profile: full names of interfaces."""
    resolved = filler.resolved
    if resolved.site.network.interface and resolved.site.scheduler.type != "local":
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
