"""`fabric:` of a site profile: settings of the fast network for NCCL, RCCL and Gloo."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

Kind = Literal["slingshot", "infiniband", "omni-path", "roce", "efa", "gcp", "ethernet"]


class Fabric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fast network. A node class may override parts of it. Omitted settings are left to the libraries."""

    kind: Annotated[Kind | None, Meta(description="Network family. Add its base profile to `extends`.")] = None
    nccl_interfaces: Annotated[
        list[str] | None,
        Meta(
            description="NCCL_SOCKET_IFNAME: interfaces for NCCL's bootstrap, if `network.interface` is not "
            "specific enough. Name prefixes, or with `^` before the first one prefixes to exclude.",
            examples=[["hsn0", "hsn1"]],
        ),
    ] = None
    gloo_interfaces: Annotated[
        list[str] | None, Meta(description="GLOO_SOCKET_IFNAME: interfaces for Gloo, by full name.")
    ] = None
    family: Annotated[Literal["AF_INET", "AF_INET6"] | None, Meta(description="NCCL_SOCKET_FAMILY: IPv4 or IPv6.")] = (
        None
    )
    hca: Annotated[
        list[str] | None,
        Meta(
            description="NCCL_IB_HCA: InfiniBand adapters. `=` before the first one requires exact names.",
            examples=[["mlx5_0", "mlx5_1"]],
        ),
    ] = None
    net: Annotated[
        str | None,
        Meta(
            description="NCCL_NET: network that NCCL must use. A missing plugin is then an error instead of a "
            "fallback to TCP.",
            examples=["AWS Libfabric"],
        ),
    ] = None
    plugin: Annotated[str | None, Meta(description="NCCL_NET_PLUGIN: network plugin, or `none`.")] = None
    topology: Annotated[str | None, Meta(description="NCCL_TOPO_FILE: topology file on the nodes.")] = None
    topology_inside: Annotated[str | None, Meta(description="Path of the topology file inside an image.")] = None


def overlay_fabric(site: Fabric, node: Fabric) -> tuple[Fabric, frozenset[str]]:
    """The fabric of a node class: the site's settings with its own, and which keys are its own."""
    own = {key: value for key, value in asdict(node).items() if value is not None}
    return Fabric(**{**asdict(site), **own}), frozenset(own)
