"""The time of a training step, to rank layouts: it does not predict seconds unless a measured run calibrates it.

Constants without a source of their own were fitted, and rounded, to all runs of tests/estimate/data/step_time_*.csv
together: A100 and H100, three frameworks, 8 to 512 GPUs. Within each of those data sets the estimate has a rank
correlation of 0.8 or more with the measured utilization.
"""

from __future__ import annotations

import math

from msgspec import Struct

from hpc_launch.estimate.gpu import BYTES, MEMORY_EFFICIENCY, Gpu, LayerWork, compute_time, layer_work
from hpc_launch.estimate.model_states import shards_parameters
from hpc_launch.estimate.training_setup import TrainingSetup, stage_layers
from hpc_launch.layouts.parallel_layout import spread
from hpc_launch.model.model_config import ModelConfig, parameters

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

    def __init__(self, gpu: Gpu, size: int, stride: int, world_size: int) -> None:
        self.size = size
        self.bandwidth = gpu.node_bandwidth * NODE_EFFICIENCY
        self.latency = NODE_LATENCY
        if size > 1:
            found = spread(size, stride, world_size, gpu.per_node)
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


DATA_OVERLAP = 0.5
"""Part of the computation behind which gradients and gathered weights can hide."""
DATA_COST = 0.15
"""Part of hidden communication that is paid all the same: it takes multiprocessors and memory bandwidth."""
STEP_OVERHEAD = 0.03
"""Seconds of a step that no size changes: gradient norm, loss, logging."""
OPTIMIZER_BYTES = 28
"""Bytes that Adam reads and writes per parameter: gradient read, weight and two moments read and written in 32 bits."""
HOST_BANDWIDTH = 1e10
"""Bytes per second and GPU that an offloaded optimizer and offloaded weights reach. DeepSpeed's CPU Adam takes
2.6 s for 10 billion parameters on a node (arXiv 2101.06840, table 4), which its GPUs share; the rest is PCIe."""


def step_time(model: ModelConfig, setup: TrainingSetup, gpu: Gpu) -> float:
    """Seconds of a step of a layout that meets the rules of `parallel_rules`."""
    return _Step(model, setup, gpu).seconds()


class _Step:
    def __init__(self, model: ModelConfig, setup: TrainingSetup, gpu: Gpu) -> None:
        layout = setup.layout
        parallel = layout.parallel
        self.model, self.setup, self.gpu, self.parallel = model, setup, gpu, parallel
        self.work: LayerWork = layer_work(model)
        self.world = layout.world_size
        self.compute = compute_time(model, setup, gpu)
        self.layers, self.waits = self._slowest_stage()
        self.rounds = max(1, layout.microbatches)
        self.tokens = parallel.micro_batch * setup.sequence / parallel.cp
        self.replicas = setup.data_parallel

    def seconds(self) -> float:
        """What the GPUs compute, what they wait for, and what communication the computation does not hide."""
        layer, attention, head = self.compute
        communication = (self.tensor(), self.context(attention), self.experts())
        pipeline = self.pipeline()
        each = self.layers * layer
        busy = self.rounds * (each + (head if self.waits else 0.0))
        others = (self.model.layers - self.layers) * sum(communication, layer)
        bubble = (others + (self.parallel.pp - 1) * pipeline) / (self.parallel.vpp or 1)
        between = (self.rounds * self.layers * seconds for seconds in communication)
        apart = (self.data(self.rounds * each, each), self.optimizer() + STEP_OVERHEAD)
        return math.fsum((busy, bubble, *between, self.rounds * pipeline, *apart))

    def _slowest_stage(self) -> tuple[int, bool]:
        """Layers of the stage that all others wait for, and whether it is the last one with the output layer."""
        sizes = stage_layers(self.model.layers, self.setup)
        last = sizes[-1] * self.compute.layer + self.compute.head >= max(sizes) * self.compute.layer
        return (sizes[-1], True) if last else (max(sizes), False)

    def tensor(self) -> float:
        """Two all-reduces per pass and layer, or the same volume as all-gather and reduce-scatter."""
        parallel = self.parallel
        if parallel.tp == 1:
            return 0.0
        link = self.link(parallel.tp, 1)
        passes = 3 if self.setup.recompute == "full" else 2
        return passes * 2 * link.reduce(self.tokens * self.model.hidden * BYTES)

    def context(self, attention: float) -> float:
        """Keys and values of the other parts of the sequence; their gradients travel too."""
        parallel = self.parallel
        if parallel.cp == 1:
            return 0.0
        link = self.link(parallel.cp, parallel.tp)
        size = self.tokens * parallel.cp * self.work.key_value_width / parallel.tp * BYTES
        passes = 4 if self.setup.recompute == "full" else 3
        return max(0.0, passes * link.gather(size) - attention)

    def experts(self) -> float:
        """Tokens to their experts and back, forward and backward."""
        parallel = self.parallel
        if parallel.ep == 1 or not self.work.routed:
            return 0.0
        link = self.link(parallel.ep, parallel.etp or parallel.tp)
        size = self.tokens / parallel.tp * self.work.routed * self.model.hidden * BYTES
        passes = 3 if self.setup.recompute == "full" else 2
        return passes * 2 * link.gather(size)

    def pipeline(self) -> float:
        """Activations to the next stage, gradients to the previous one, per micro batch."""
        parallel = self.parallel
        if parallel.pp == 1:
            return 0.0
        link = self.link(parallel.pp, self.world // parallel.pp)
        split = parallel.tp if parallel.sequence_parallel else 1
        seconds = 2 * (parallel.vpp or 1) * link.send(self.tokens * self.model.hidden * BYTES / split)
        # Megatron overlaps these messages in the interleaved schedule only (overlap_p2p_comm).
        return seconds * DATA_COST if parallel.vpp and parallel.overlap else seconds

    def data(self, all_rounds: float, last_round: float) -> float:
        """Gradients and gathered weights of the replicas that the computation does not hide."""
        parallel = self.parallel
        stored = self.layers * self.work.dense_weights + parameters(self.model).embedding / parallel.pp
        seconds = self.exchange(self.replicas, parallel.tp, stored / parallel.tp)
        tensor = parallel.etp or parallel.tp
        if self.work.expert_weights:
            apart = tensor * parallel.ep
            weights = self.layers * self.work.expert_weights / apart
            seconds += self.exchange(self.setup.expert_data_parallel, apart, weights)
        if self.setup.offload_parameters:
            # Each round reads this rank's share from the host, forward and backward.
            seconds += self.rounds * 2 * stored * BYTES / parallel.tp / self.replicas / HOST_BANDWIDTH
        if self.setup.framework == "megatron" and not parallel.overlap:
            return seconds
        # FSDP and ZeRO-3 communicate in each round, the others once the last round has the gradients.
        hidden = all_rounds if shards_parameters(self.setup) else last_round
        return max(seconds - DATA_OVERLAP * hidden, DATA_COST * seconds)

    def exchange(self, ranks: int, stride: int, weights: float) -> float:
        """Gradients, and weights where the replicas share these, of ranks that hold the same part of the model."""
        size = weights * BYTES
        link = self.link(ranks, stride)
        if self.setup.sharding == "none":
            return link.reduce(2 * size)
        if not shards_parameters(self.setup):
            return link.gather(2 * size) + link.gather(size)
        # With a pipeline, weights stay gathered for the whole step; otherwise each micro batch gathers them twice.
        times = 1 if self.parallel.pp > 1 else self.rounds
        group = min(self.setup.shard_group or ranks, ranks)
        inner = self.link(group, stride)
        between = self.link(ranks // group, stride * group).reduce(2 * size / group)
        return times * (2 * inner.gather(size) + inner.gather(2 * size)) + between

    def link(self, size: int, stride: int) -> Link:
        return Link(self.gpu, size, stride, self.world)

    def optimizer(self) -> float:
        shared = 1 if self.setup.sharding == "none" else self.replicas
        weights = self.layers * (
            self.work.dense_weights / self.parallel.tp
            + self.work.expert_weights / ((self.parallel.etp or self.parallel.tp) * self.parallel.ep)
        )
        bandwidth = HOST_BANDWIDTH if self.setup.offload_optimizer else self.gpu.memory_bandwidth * MEMORY_EFFICIENCY
        return weights / shared * OPTIMIZER_BYTES / bandwidth


class Walltime(Struct, frozen=True, kw_only=True):
    """A training in jobs that follow each other. Times are in seconds; waiting in the queue is not counted."""

    steps: int
    step_s: float
    start_s: float = 0.0
    """From the start of a job to its first step."""
    limit_s: float | None = None
    """Time limit of a job; None if there is none."""
    lead_s: float = 0.0
    """How long before the limit the training is warned and saves."""
    gpus: int = 0

    @property
    def jobs(self) -> int | None:
        """Jobs that follow each other; None if a job has no time for a single step."""
        if self.limit_s is None:
            return 1
        usable = self.limit_s - self.start_s - self.lead_s
        if usable < self.step_s or usable <= 0:
            return None
        return max(1, math.ceil(self.steps / math.floor(usable / self.step_s))) if self.step_s > 0 else 1

    @property
    def wall_s(self) -> float | None:
        """Time of all jobs together."""
        return None if self.jobs is None else self.steps * self.step_s + self.jobs * self.start_s

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours of all jobs together."""
        return None if self.wall_s is None else self.wall_s * self.gpus / 3600


class TrainingSpeed(Struct, frozen=True, kw_only=True):
    """The measured speed of a training."""

    tokens_s: float
    """Tokens per second, over all GPUs."""
    mfu: float
    """Model FLOPs utilization, from 0 to 1, relative to the dense bf16 peak of the GPUs."""


def training_flops(model: ModelConfig, sequence: int) -> float:
    """Operations per token, forward and backward, as arXiv 2204.02311, appendix B, counts them: nothing that is
    computed again. Of the attention, a causal mask leaves half."""
    work = layer_work(model)
    layers = model.layers * (work.matrices + work.attention * sequence / 2)
    return 3 * (layers + 2.0 * model.hidden * model.vocab)


def training_speed(model: ModelConfig, setup: TrainingSetup, gpu: Gpu, step_s: float) -> TrainingSpeed:
    """The speed of a training with one process per GPU, by the measured seconds per step."""
    tokens_s = setup.layout.global_batch * setup.sequence / step_s
    peak = gpu.flops * setup.layout.world_size
    return TrainingSpeed(tokens_s=tokens_s, mfu=tokens_s * training_flops(model, setup.sequence) / peak)
