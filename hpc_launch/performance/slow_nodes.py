"""Detect stragglers (a node, GPU or rank that the others wait for) and throttled GPUs, from samples. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from hpc_launch.performance.run_samples import MIN_RANK_SAMPLES, Remark, RunFacts

MIN_WAIT_SHARE = 0.5
"""Minimum share of samples in which the other ranks wait; in a balanced run all ranks wait for each other."""
WAIT_GAP = 0.4
"""How much smaller the straggler's wait share is. Two balanced ranks of a Gloo training differed by less than 0.1."""
UTIL_BUSY, UTIL_GAP = 80.0, 30.0
"""Percent. nvidia-smi counts GPUs that wait inside NCCL as busy, so the straggler has the lower utilization."""
THROTTLED_SHARE = 0.2
UTIL_AT_WORK = 50.0
CLOCK_BELOW = 0.85
"""Fraction of the other busy GPUs' median clock. Boost clocks of identical GPUs differ by a few percent."""
REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of `clocks_throttle_reasons.active` (nvml.h, nvmlClocksThrottleReason…) that slow down a busy GPU. Excludes the
power cap (0x4), which is normal under full load."""


def stragglers(facts: RunFacts) -> tuple[Remark, ...]:
    """The node, GPU or rank that the others wait for."""
    return tuple(_stragglers_by_gpu(facts)) or tuple(_stragglers_by_place(facts))


def _stragglers_by_gpu(facts: RunFacts) -> Iterator[Remark]:
    """A node, or one of its GPUs, with lower utilization than all others, which wait for it inside NCCL."""
    gpus = [(node, gpu, gpu.util or 0.0) for node in facts.nodes for gpu in node.used]
    means = [(node, median(mine)) for node in facts.nodes if (mine := [util for at, _, util in gpus if at is node])]
    whole = set()
    for at, (node, util) in enumerate(means if len(means) > 1 else ()):
        rest = _median_of_others([value for _, value in means], at)
        if rest >= UTIL_BUSY and util <= rest - UTIL_GAP:
            whole.add(node.name)
            text = (
                f"{node.name} is slower than the other nodes, which wait for it: GPU utilization {util:.0f} %, "
                f"others {rest:.0f} %"
            )
            yield Remark("node_behind", text, _exclude_hint(node.name), node.name, quotes=node.quotes)
    for at, (node, gpu, util) in enumerate(gpus if len(gpus) > 1 else ()):
        rest = _median_of_others([value for _, _, value in gpus], at)
        if node.name not in whole and rest >= UTIL_BUSY and util <= rest - UTIL_GAP:
            text = (
                f"GPU {gpu.index} of {node.name} is slower than the others, which wait for it: utilization "
                f"{util:.0f} %, others {rest:.0f} %"
            )
            todo = "run `py-spy dump` to see where its rank spends its time; " + _exclude_hint(node.name)
            yield Remark("node_behind", text, todo, node.name, quotes=node.quotes)


def _stragglers_by_place(facts: RunFacts) -> Iterator[Remark]:
    """The rank that is not where the others wait. Only for CPU jobs: with GPUs, a lock may be the data loader's."""
    if any(node.used for node in facts.nodes):
        return
    ranks = [(node, rank) for node in facts.nodes for rank in node.ranks if rank.count >= MIN_RANK_SAMPLES]
    if len(ranks) < 2:
        return
    waits = [rank.share("futex") for _, rank in ranks]
    late = [at for at in range(len(ranks)) if _is_straggler(waits[at], _median_of_others(waits, at))]
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
    """Busy GPUs with reduced clocks."""
    gpus = [(node, gpu) for node in facts.nodes for gpu in node.used]
    todo = (
        "report the node to the site's support (cooling or power), and exclude it until then: "
        "hpc-launch resubmit RUN --exclude {}"
    )
    slowed = set()
    for node, gpu in gpus:
        much = [(reason, share) for reason, share in gpu.throttled.items() if share >= THROTTLED_SHARE]
        why = [f"{reason} in {share:.0%} of the samples" for reason, share in much]
        if why:
            slowed.add((node.name, gpu.index))
            text = f"the clocks of GPU {gpu.index} of {node.name} are throttled: {', '.join(why)}"
            yield Remark("clocks_throttled", text, todo.format(node.name), node.name, quotes=node.quotes)
    busy = [(node, gpu, gpu.mhz) for node, gpu in gpus if gpu.mhz and (gpu.util or 0) >= UTIL_AT_WORK]
    for at, (node, gpu, mhz) in enumerate(busy if len(busy) > 1 else ()):
        rest = _median_of_others([clock for _, _, clock in busy], at)
        if mhz < CLOCK_BELOW * rest and (node.name, gpu.index) not in slowed:
            text = f"GPU {gpu.index} of {node.name} runs at {mhz:.0f} MHz, the others at {rest:.0f} MHz"
            yield Remark("clocks_throttled", text, todo.format(node.name), node.name, quotes=node.quotes)


def _is_straggler(share: float, rest: float) -> bool:
    return rest >= MIN_WAIT_SHARE and share <= rest - WAIT_GAP


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
