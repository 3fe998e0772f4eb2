"""What slows a training down: slow nodes, clocks, network, NVLink, data loader. Pure, but for `attempt_remarks`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct

from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.performance.run_samples import RunFacts, gather
from hpc_launch.runs.layout import AttemptFolder

RemarkKind = Literal["nvlink_unused", "plain_sockets", "node_behind", "loader_starved", "gpus_idle", "clocks_throttled"]

MIN_RANK_SAMPLES = 8
"""Minimum samples of a rank's wait place."""
MIN_WAIT_SHARE = 0.5
"""Minimum share of samples in which the other ranks wait; in a balanced run all ranks wait for each other."""
WAIT_GAP = 0.4
"""How much smaller the straggler's wait share is. Two balanced ranks of a Gloo training differed by less than 0.1."""
UTIL_BUSY, UTIL_GAP = 80.0, 30.0
"""Percent. nvidia-smi counts GPUs that wait inside NCCL as busy, so the straggler has the lower utilization."""
THROTTLED_SHARE = 0.2


class Remark(Struct, frozen=True):
    """One cause of a slowdown, where it was seen, and what to do."""

    kind: RemarkKind
    text: str
    todo: str
    node: str | None = None
    rank: int | None = None
    quotes: tuple[Quote, ...] = ()


def attempt_remarks(attempt: AttemptFolder) -> tuple[Remark, ...]:
    """The causes of a slowdown of this attempt. Never raises; unreadable data is ignored."""
    return remarks(gather(attempt))


def remarks(facts: RunFacts) -> tuple[Remark, ...]:
    """The causes of a slowdown, most severe first. Each remark needs evidence; without facts there are none. Pure."""
    slow = tuple(stragglers(facts))
    return (*slow, *throttled(facts), *sockets(facts), *nvlink(facts), *loader(facts, slow))


def stragglers(facts: RunFacts) -> tuple[Remark, ...]:
    """The node, GPU or rank that the others wait for."""
    return tuple(_stragglers_by_gpu(facts)) or tuple(_stragglers_by_place(facts))


def _stragglers_by_gpu(facts: RunFacts) -> Iterator[Remark]:
    """A node, or one of its GPUs, with lower utilization than all others, which wait for it inside NCCL."""
    gpus = [(node, f"GPU {gpu.index} of {node.name}", gpu.util or 0.0) for node in facts.nodes for gpu in node.used]
    means = [(node, node.name, median(gpu.util or 0.0 for gpu in node.used)) for node in facts.nodes if node.used]
    named = set()
    for parts in (means, gpus):
        for at, (node, name, util) in enumerate(parts if len(parts) > 1 else ()):
            rest = _median_of_others([value for _, _, value in parts], at)
            if node.name not in named and rest >= UTIL_BUSY and util <= rest - UTIL_GAP:
                named.add(node.name)
                text = f"{name} is slower than the others, which wait for it: GPU utilization {util:.0f} %"
                todo = _exclude_hint(node.name)
                yield Remark("node_behind", f"{text}, others {rest:.0f} %", todo, node.name, quotes=node.quotes)


def _stragglers_by_place(facts: RunFacts) -> Iterator[Remark]:
    """The rank that is not where the others wait. Only for CPU jobs: with GPUs, a lock may be the data loader's."""
    if any(node.used for node in facts.nodes):
        return
    ranks = [(node, rank) for node in facts.nodes for rank in node.ranks if rank.count >= MIN_RANK_SAMPLES]
    if len(ranks) < 2:
        return
    waits = [rank.share("futex") for _, rank in ranks]
    others = [_median_of_others(waits, at) for at in range(len(ranks))]
    late = [at for at, rest in enumerate(others) if rest >= MIN_WAIT_SHARE and waits[at] <= rest - WAIT_GAP]
    named: dict[str, list[int]] = {}
    for at in late:
        named.setdefault(ranks[at][0].name, []).append(at)
    for name, mine in named.items():
        node, first = ranks[mine[0]]
        rest = median([share for at, share in enumerate(waits) if at not in late] or [1.0])
        numbers = ", ".join(str(ranks[at][1].rank) for at in mine)
        who = f"rank {numbers} on {name} is" if len(mine) == 1 else f"ranks {numbers} on {name} are"
        elsewhere = [place for place in first.places if "futex" not in place]
        place = max(elsewhere, key=lambda place: first.places[place], default="running")
        text = (
            f"{who} slower than the other ranks: waiting in {waits[mine[0]]:.0%} of the samples, "
            f"the others in {rest:.0%}; usually {_describe(place)}"
        )
        todo = "run `py-spy dump` to see where it spends its time; " + _exclude_hint(name)
        yield Remark("node_behind", text, todo, name, first.rank if len(mine) == 1 else None, node.quotes)


def throttled(facts: RunFacts) -> Iterator[Remark]:
    """GPUs with reduced clocks."""
    for node in facts.nodes:
        for gpu in node.used:
            much = [(reason, share) for reason, share in gpu.throttled.items() if share >= THROTTLED_SHARE]
            if much:
                why = ", ".join(f"{reason} in {share:.0%} of the samples" for reason, share in much)
                text = f"the clocks of GPU {gpu.index} of {node.name} are throttled: {why}"
                todo = (
                    "report the node to the site's support (cooling or power), and exclude it until then: "
                    f"hpc-launch resubmit RUN --exclude {node.name}"
                )
                yield Remark("clocks_throttled", text, todo, node.name, quotes=node.quotes)


def _median_of_others(values: Sequence[float], at: int) -> float:
    return median([*values[:at], *values[at + 1 :]])


def _exclude_hint(node: str) -> str:
    if " " in node:  # a "node" of a local run, not a Slurm node name
        return "check what else runs there"
    return (
        f"check other processes and temperatures on {node}; if it stays slow, exclude it: "
        f"hpc-launch resubmit RUN --exclude {node}"
    )


def _describe(place: str) -> str:
    if place == "running":
        return "computing"
    if "nanosleep" in place:
        return "sleeping"
    return f"waiting in the kernel at {place}"


UTIL_IDLE = 50.0
"""GPU utilization in percent below which something else limits the training."""
DATA_SHARE = 0.4
"""Share of samples in which ranks wait for a pipe, a poll or a disk above which the data loader is the cause."""
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
    many = facts.of("workers")
    seen = f"GPU utilization is only {util:.0f} %" if util is not None else ""
    quotes = tuple(line.quote for line in many[:1])
    todo = (
        "use as many DataLoader workers as a process has CPUs (`cpus_per_node`), set `pin_memory` and "
        "`persistent_workers`, and keep the data on fast storage"
    )
    if data >= DATA_SHARE:
        text = ", and ".join(filter(None, (seen, f"the ranks wait for data in {data:.0%} of the samples")))
        yield Remark("loader_starved", text, todo, quotes=quotes)
    elif many:
        text = ", and ".join(filter(None, (seen, "the DataLoader has more workers than CPUs")))
        yield Remark("loader_starved", text, todo, quotes=quotes)
    elif util is not None:
        todo = "run `py-spy dump` to see where the ranks spend their time: data loading, checkpoints, or a small model"
        yield Remark("gpus_idle", seen, todo)
