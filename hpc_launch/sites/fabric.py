"""`fabric:` of a site profile: the fast network, as far as NCCL, RCCL and Gloo must be told about it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

Kind = Literal["slingshot", "infiniband", "omni-path", "roce", "efa", "gcp", "ethernet"]


class Fabric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fast network. A node class may say some of it otherwise. What is left out is left to the libraries."""

    kind: Annotated[Kind | None, Meta(description="The family; its base profile is to be named in `extends`.")] = None
    nccl_interfaces: Annotated[
        list[str] | None,
        Meta(
            description="Interfaces for NCCL's first contact, where `network.interface` does not say enough: "
            "beginnings of names, or with `^` before the first those to keep off. NCCL_SOCKET_IFNAME.",
            examples=[["hsn0", "hsn1"]],
        ),
    ] = None
    gloo_interfaces: Annotated[
        list[str] | None, Meta(description="The same for Gloo, by full names alone: GLOO_SOCKET_IFNAME.")
    ] = None
    family: Annotated[
        Literal["AF_INET", "AF_INET6"] | None, Meta(description="IPv4 or IPv6 for them: NCCL_SOCKET_FAMILY.")
    ] = None
    hca: Annotated[
        list[str] | None,
        Meta(
            description="InfiniBand adapters: NCCL_IB_HCA. `=` before the first means exactly these names.",
            examples=[["mlx5_0", "mlx5_1"]],
        ),
    ] = None
    net: Annotated[
        str | None,
        Meta(
            description="The network that NCCL must find, so that a missing plugin fails "
            "instead of falling back to TCP: NCCL_NET.",
            examples=["AWS Libfabric"],
        ),
    ] = None
    plugin: Annotated[str | None, Meta(description="The network plugin, or `none`: NCCL_NET_PLUGIN.")] = None
    topology: Annotated[str | None, Meta(description="A topology file on the nodes: NCCL_TOPO_FILE.")] = None
    topology_inside: Annotated[str | None, Meta(description="The same file's place inside an image.")] = None


def over(site: Fabric, node: Fabric) -> tuple[Fabric, frozenset[str]]:
    """The fabric of a node class, and which keys are its own."""
    own = {key: value for key, value in asdict(node).items() if value is not None}
    return Fabric(**{**asdict(site), **own}), frozenset(own)
