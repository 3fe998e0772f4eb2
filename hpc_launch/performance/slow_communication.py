"""Detect slow data paths: network, NVLink, gradient buckets, data loader. From samples and log lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from hpc_launch.performance.run_samples import MIN_RANK_SAMPLES, Remark, RunFacts

UTIL_IDLE = 50.0
"""GPU utilization in percent below which something else limits the training."""
DATA_SHARE = 0.4
"""Share of samples in which ranks wait for a pipe, a poll or a disk above which the data loader is the cause."""
DDP_BUCKET = 5 << 20
"""Bytes; a fifth of PyTorch's default (torch/nn/parallel/distributed.py, bucket_cap_mb)."""
DDP_MANY = 8
"""Number of buckets from which their size matters."""
ZERO_BUCKET = 1e6
"""Elements. DeepSpeed's default is 5e8 (runtime/zero/config.py); the transformers Trainer sets the square of the
hidden size, which is smaller only for models too small for ZeRO."""
SOCKETS_BUSY = 20e6
"""Bytes per second on an Ethernet interface above which an idle fast network is reported."""

FAST = frozenset({"slingshot", "infiniband", "omni-path", "roce", "efa", "gcp"})
"""Fabrics for which NCCL does not use plain TCP sockets."""


def sockets(facts: RunFacts) -> Iterator[Remark]:
    """NCCL uses TCP sockets between nodes connected by a fast network."""
    if max(facts.planned_nodes, len(facts.nodes)) < 2:
        return
    ports = {name for node in facts.nodes for name in node.net if ":" in name}
    fabric = facts.fabric if facts.fabric in FAST else "InfiniBand or RoCE" if ports else None
    if fabric is None:
        return
    todo = (
        "check the site's documentation for NCCL's network plugin and that the image has it; set `fabric.net` in the "
        "profile to make a missing plugin fail instead of falling back; NCCL_DEBUG=INFO shows NCCL's choice"
    )
    lines = facts.of("socket")
    if lines:
        first = lines[0]
        quotes = tuple(line.quote for line in (*lines[:2], *facts.of("no_ib")[:1]))
        where = f" on {first.node}" if len({line.node for line in lines}) < len(facts.nodes) and first.node else ""
        text = f"NCCL uses TCP sockets{where} instead of {fabric}"
        yield Remark("plain_sockets", text, todo, first.node if where else None, first.rank if where else None, quotes)
        return
    for node in facts.nodes:
        fast = sum(rate for name, rate in node.net.items() if ":" in name)
        plain = sum(rate for name, rate in node.net.items() if ":" not in name)
        if any(":" in name for name in node.net) and plain >= SOCKETS_BUSY and fast < plain / 100:
            text = f"{node.name} transfers {plain / 1e6:.0f} MB/s over Ethernet, and almost nothing over {fabric}"
            yield Remark("plain_sockets", text, todo, node.name, quotes=node.quotes)
            return


def nvlink(facts: RunFacts) -> Iterator[Remark]:
    """GPUs connected by NVLink communicate through host memory."""
    linked = bool(facts.of("nvlink")) or any(node.nvlinks for node in facts.nodes)
    off = facts.of("p2p_off")
    disabled = [line for line in off if "NVLINK" in line.quote.text or linked]
    staged = [line for line in facts.of("shm") if linked and not facts.of("p2p", line.node)]
    if not disabled and not staged:
        return
    first = (disabled or staged)[0]
    text = "the GPUs of a node communicate through host memory instead of NVLink"
    todo = (
        "let each process see all GPUs of its node (no `gpu_bind`, no CUDA_VISIBLE_DEVICES with a single GPU) and "
        "unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL"
    )
    quotes = tuple(line.quote for line in (*disabled[:1], *staged[:1]))
    yield Remark("nvlink_unused", text, todo, first.node, first.rank, quotes)


def loader(facts: RunFacts, stragglers: Sequence[Remark]) -> Iterator[Remark]:
    """GPUs or ranks wait for the next batch. `stragglers`: remarks that already explain the wait."""
    gpus = [gpu.util or 0.0 for node in facts.nodes for gpu in node.used]
    util = median(gpus) if gpus else None
    if stragglers or (util is not None and util >= UTIL_IDLE):
        return
    # With pinned memory, batches are passed under a lock; without GPUs, ranks wait for each other in a lock.
    places = ("pipe", "poll", "folio_wait", "io_schedule", "rpc_wait", *(("futex",) if gpus else ()))
    ranks = [rank for node in facts.nodes for rank in node.ranks if rank.count >= MIN_RANK_SAMPLES]
    data = median([rank.share(*places) for rank in ranks]) if ranks else 0.0
    many, few = facts.of("workers"), facts.of("few_workers")
    seen = f"GPU utilization is only {util:.0f} %" if util is not None else ""
    quotes = tuple(line.quote for line in (*many[:1], *few[:1]))
    todo = (
        "use as many DataLoader workers as a process has CPUs (`cpus_per_node`), set `pin_memory` and "
        "`persistent_workers`, and keep the data on fast storage"
    )
    if data >= DATA_SHARE:
        text = ", and ".join(filter(None, (seen, f"the ranks wait for data in {data:.0%} of the samples")))
        yield Remark("loader_starved", text, todo, quotes=quotes)
    elif many or (few and util is not None):
        workers = "the DataLoader has more workers than CPUs" if many else "the DataLoader has few workers"
        yield Remark("loader_starved", ", and ".join(filter(None, (seen, workers))), todo, quotes=quotes)
    elif util is not None:
        todo = "run `py-spy dump` to see where the ranks spend their time: data loading, checkpoints, or a small model"
        yield Remark("gpus_idle", seen, todo)


def buckets(facts: RunFacts) -> Iterator[Remark]:
    """Gradient buckets so small that network latency dominates bandwidth."""
    if facts.planned_nodes * facts.processes_per_node < 2:
        return
    for line in facts.of("ddp_bucket")[:1]:
        total = next((other.value for other in facts.of("ddp_total")), None)
        if line.value is not None and line.value < DDP_BUCKET and (total is None or total >= DDP_MANY * line.value):
            text = f"gradient buckets are only {line.value / 2**20:.1f} MiB"
            todo = "set `bucket_cap_mb` of DistributedDataParallel to its default of 25 or more"
            yield Remark("small_buckets", text, todo, line.node, line.rank, (line.quote,))
    for line in facts.of("zero_bucket")[:1]:
        if line.value is not None and line.value < ZERO_BUCKET:
            text = f"gradient buckets are only {line.value:.0f} elements"
            todo = "increase `zero_optimization.reduce_bucket_size` (default 5e8) as far as GPU memory allows"
            yield Remark("small_buckets", text, todo, line.node, line.rank, (line.quote,))
