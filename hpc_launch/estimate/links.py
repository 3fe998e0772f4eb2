"""Time of a collective operation on the links that its group uses."""

from __future__ import annotations

from hpc_launch.estimate.gpu import Gpu
from hpc_launch.layouts.groups import GroupShape, spread

NODE_EFFICIENCY = 0.65
"""Part of the published bandwidth that messages of a training reach. Large messages alone reach 0.8: 370 of 450 GB/s on
eight H100 (ml-engineering, network/README.md)."""
NETWORK_EFFICIENCY = 0.4
"""The same between two nodes. It falls with more nodes; this and the next were fitted as in `step_time`."""
CONGESTION = 0.2
"""Exponent of the number of nodes by which the bandwidth falls."""
NODE_LATENCY = 1.5e-5
"""Seconds for each collective inside a node: launch and synchronization."""
NETWORK_LATENCY = 2e-5
"""Seconds for each collective between nodes, for each doubling of the nodes (tree)."""


class Link:
    """What a group of ranks communicates over."""

    __slots__ = ("bandwidth", "latency", "size")

    def __init__(self, gpu: Gpu, shape: GroupShape, world_size: int) -> None:
        self.size = shape.size
        self.bandwidth = gpu.node_bandwidth * NODE_EFFICIENCY
        self.latency = NODE_LATENCY
        if shape.size > 1:
            found = spread(shape.size, shape.stride, world_size, gpu.per_node)
            if found.nodes > 1:
                # A ring enters and leaves each node once; its GPUs there share their adapters.
                share = NETWORK_EFFICIENCY / (found.nodes / 2) ** CONGESTION
                network = gpu.network_bandwidth * share * found.per_node
                self.bandwidth = min(self.bandwidth, network)
                self.latency = NETWORK_LATENCY * found.nodes.bit_length()

    def gather(self, size: float) -> float:
        """Seconds of an all-gather, a reduce-scatter or an all-to-all of so many bytes in total per GPU."""
        if self.size == 1:
            return 0.0
        return size * (self.size - 1) / self.size / self.bandwidth + self.latency

    def reduce(self, size: float) -> float:
        """Seconds of an all-reduce of so many bytes."""
        return 2 * self.gather(size)

    def send(self, size: float) -> float:
        """Seconds of a message to the next rank of the group."""
        return 0.0 if self.size == 1 else size / self.bandwidth + self.latency
