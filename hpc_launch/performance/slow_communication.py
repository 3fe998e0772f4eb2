"""Whether the data takes the fast way: network, NVLink, buckets, loader. From samples and lines of the log. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from hpc_launch.performance.run_samples import FEWEST_LOOKS, Remark, RunFacts

UTIL_IDLE = 50.0
"""Per cent of the time with a kernel on the GPU, below which something else holds the training up."""
DATA_SHARE = 0.4
"""Share of looks at which ranks wait for a pipe, a poll or a disk, from which on the loader is to blame."""
DDP_BUCKET = 5 << 20
"""Bytes: a fifth of PyTorch's default (torch/nn/parallel/distributed.py, bucket_cap_mb)."""
DDP_MANY = 8
"""Buckets from which on their size matters."""
ZERO_BUCKET = 1e6
"""Elements. DeepSpeed's default is 5e8 (runtime/zero/config.py); the Trainer of transformers sets the square of the
hidden size, which is less only for models too small for ZeRO."""
SOCKETS_BUSY = 20e6
"""Bytes a second on an ordinary interface from which on one that stands idle beside it is worth a word."""

FAST = frozenset({"slingshot", "infiniband", "omni-path", "roce", "efa", "gcp"})
"""Fabrics of site profiles that NCCL reaches otherwise than by plain sockets."""


def sockets(facts: RunFacts) -> Iterator[Remark]:
    """Plain sockets between nodes that a fast network joins."""
    if max(facts.planned_nodes, len(facts.nodes)) < 2:
        return
    ports = {name for node in facts.nodes for name in node.net if ":" in name}
    fabric = facts.fabric if facts.fabric in FAST else "InfiniBand or RoCE" if ports else None
    if fabric is None:
        return
    todo = (
        "see the site's page for NCCL's network plugin, and that the image has it; `fabric.net` in the profile makes a "
        "missing one fail instead of falling back; NCCL_DEBUG=INFO says what was chosen"
    )
    lines = facts.of("socket")
    if lines:
        first = lines[0]
        quotes = tuple(line.quote for line in (*lines[:2], *facts.of("no_ib")[:1]))
        where = f" on {first.node}" if len({line.node for line in lines}) < len(facts.nodes) and first.node else ""
        text = f"NCCL goes over plain sockets{where}, though there is {fabric}"
        yield Remark("plain_sockets", text, todo, first.node if where else None, first.rank if where else None, quotes)
        return
    for node in facts.nodes:
        fast = sum(rate for name, rate in node.net.items() if ":" in name)
        plain = sum(rate for name, rate in node.net.items() if ":" not in name)
        if any(":" in name for name in node.net) and plain >= SOCKETS_BUSY and fast < plain / 100:
            text = (
                f"{node.name} moves {plain / 1e6:.0f} MB/s over ordinary interfaces, and next to nothing over {fabric}"
            )
            yield Remark("plain_sockets", text, todo, node.name, quotes=node.quotes)
            return


def nvlink(facts: RunFacts) -> Iterator[Remark]:
    """The host's memory between GPUs that NVLink joins."""
    linked = bool(facts.of("nvlink")) or any(node.nvlinks for node in facts.nodes)
    off = facts.of("p2p_off")
    told = [line for line in off if "NVLINK" in line.quote.text or linked]
    staged = [line for line in facts.of("shm") if linked and not facts.of("p2p", line.node)]
    if not told and not staged:
        return
    first = (told or staged)[0]
    text = "GPUs of a node exchange data through the host's memory, though NVLink joins them"
    todo = (
        "let each process see all GPUs of its node (no `gpu_bind`, no CUDA_VISIBLE_DEVICES of one), and leave "
        "NCCL_P2P_DISABLE and NCCL_P2P_LEVEL unset"
    )
    quotes = tuple(line.quote for line in (*told[:1], *staged[:1]))
    yield Remark("nvlink_unused", text, todo, first.node, first.rank, quotes)


def loader(facts: RunFacts, behind: Sequence[Remark]) -> Iterator[Remark]:
    """GPUs or ranks that wait for the next batch. `behind`: what already explains that they wait."""
    gpus = [gpu.util or 0.0 for node in facts.nodes for gpu in node.used]
    util = median(gpus) if gpus else None
    if behind or (util is not None and util >= UTIL_IDLE):
        return
    # A loader that pins memory hands batches over under a lock; without GPUs a lock is where ranks wait for each other.
    words = ("pipe", "poll", "folio_wait", "io_schedule", "rpc_wait", *(("futex",) if gpus else ()))
    ranks = [rank for node in facts.nodes for rank in node.ranks if rank.looks >= FEWEST_LOOKS]
    data = median([rank.share(*words) for rank in ranks]) if ranks else 0.0
    many, few = facts.of("workers"), facts.of("few_workers")
    seen = f"the GPUs are at work only {util:.0f} % of the time" if util is not None else ""
    quotes = tuple(line.quote for line in (*many[:1], *few[:1]))
    todo = (
        "give the loader as many workers as a process has CPUs, no more (`cpus_per_node`), `pin_memory`, "
        "`persistent_workers`, and the data on fast storage"
    )
    if data >= DATA_SHARE:
        text = ", and ".join(filter(None, (seen, f"the ranks wait for data at {data:.0%} of the looks")))
        yield Remark("loader_starved", text, todo, quotes=quotes)
    elif many or (few and util is not None):
        said = "the loader was given more workers than the process has CPUs" if many else "the loader has few workers"
        yield Remark("loader_starved", ", and ".join(filter(None, (seen, said))), todo, quotes=quotes)
    elif util is not None:
        todo = "look where the ranks spend their time, with `py-spy dump`: loader, checkpoint, or a model that is small"
        yield Remark("gpus_idle", seen, todo)


def buckets(facts: RunFacts) -> Iterator[Remark]:
    """Gradients in so many pieces that the network's delay counts, not its width."""
    if facts.planned_nodes * facts.processes_per_node < 2:
        return
    for line in facts.of("ddp_bucket")[:1]:
        total = next((other.value for other in facts.of("ddp_total")), None)
        if line.value is not None and line.value < DDP_BUCKET and (total is None or total >= DDP_MANY * line.value):
            text = f"gradients go out in buckets of {line.value / 2**20:.1f} MiB"
            todo = "leave `bucket_cap_mb` of DistributedDataParallel at its 25, or raise it"
            yield Remark("small_buckets", text, todo, line.node, line.rank, (line.quote,))
    for line in facts.of("zero_bucket")[:1]:
        if line.value is not None and line.value < ZERO_BUCKET:
            text = f"gradients go out in buckets of {line.value:.0f} elements"
            todo = "raise `zero_optimization.reduce_bucket_size` (5e8 by default), as far as the GPU's memory allows"
            yield Remark("small_buckets", text, todo, line.node, line.rank, (line.quote,))
