"""What a GPU and its links can do, as far as the time of a step depends on it."""

from __future__ import annotations

from msgspec import Struct


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU and the links of its node. Bandwidths are per GPU, in one direction, in bytes per second."""

    name: str
    memory: int
    """Bytes."""
    flops: float
    """Dense matrix operations per second in bf16."""
    memory_bandwidth: float
    node_bandwidth: float
    """To another GPU of the node."""
    network_bandwidth: float
    """To a GPU of another node."""
    per_node: int
