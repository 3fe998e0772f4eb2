"""Which node, GPU or rank holds the others up, and whose clocks are throttled: from the watcher's samples. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from hpc_launch.performance.run_samples import FEWEST_LOOKS, Remark, RunFacts

WAITING_MOST = 0.5
"""Share of looks at which the others must wait for a rank to be behind: in a run that is even, each waits for each."""
BEHIND_BY = 0.4
"""By how much less the one waits than they do. Two even ranks of a Gloo training were less than 0.1 apart."""
UTIL_BUSY, UTIL_BEHIND_BY = 80.0, 30.0
"""GPUs that wait inside NCCL count as busy to nvidia-smi, so the one that is behind is the one that is less so."""
THROTTLED_SHARE = 0.2
UTIL_AT_WORK = 50.0
CLOCK_BELOW = 0.85
"""Of the median clock of the other GPUs at work. Boost clocks of equal GPUs differ by a few per cent."""
REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of `clocks_throttle_reasons.active` (nvml.h, nvmlClocksThrottleReason…) that slow down a GPU at work. The power
cap (0x4) is left out: a GPU at full load lives at it."""


def behind(facts: RunFacts) -> tuple[Remark, ...]:
    """The node, GPU or rank that the others wait for."""
    return tuple(_behind_by_gpu(facts)) or tuple(_behind_by_place(facts))


def _behind_by_gpu(facts: RunFacts) -> Iterator[Remark]:
    """The node, or one GPU of it, that is less busy than all others, which wait for it inside NCCL."""
    gpus = [(node, gpu, gpu.util or 0.0) for node in facts.nodes for gpu in node.used]
    means = [(node, median(mine)) for node in facts.nodes if (mine := [util for at, _, util in gpus if at is node])]
    whole = set()
    for at, (node, util) in enumerate(means if len(means) > 1 else ()):
        rest = _others([value for _, value in means], at)
        if rest >= UTIL_BUSY and util <= rest - UTIL_BEHIND_BY:
            whole.add(node.name)
            text = (
                f"{node.name} is behind: its GPUs are at work {util:.0f} % of the time, those of the other nodes, "
                f"which wait for it, {rest:.0f} %"
            )
            yield Remark("node_behind", text, _leave_out(node.name), node.name, quotes=node.quotes)
    for at, (node, gpu, util) in enumerate(gpus if len(gpus) > 1 else ()):
        rest = _others([value for _, _, value in gpus], at)
        if node.name not in whole and rest >= UTIL_BUSY and util <= rest - UTIL_BEHIND_BY:
            text = (
                f"GPU {gpu.index} of {node.name} is behind: at work {util:.0f} % of the time, the others, "
                f"which wait for it, {rest:.0f} %"
            )
            todo = "look where its rank spends its time, with `py-spy dump`; " + _leave_out(node.name)
            yield Remark("node_behind", text, todo, node.name, quotes=node.quotes)


def _behind_by_place(facts: RunFacts) -> Iterator[Remark]:
    """The rank that is not where the others wait. Without GPUs alone: with them, a lock may be the loader's."""
    if any(node.used for node in facts.nodes):
        return
    ranks = [(node, rank) for node in facts.nodes for rank in node.ranks if rank.looks >= FEWEST_LOOKS]
    if len(ranks) < 2:
        return
    waits = [rank.share("futex") for _, rank in ranks]
    late = [at for at in range(len(ranks)) if _is_late(waits[at], _others(waits, at))]
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
            f"{who} behind: waiting for others at {waits[mine[0]]:.0%} of the looks, the rest at {rest:.0%}; "
            f"most often found {_in_words(place)}"
        )
        todo = "look where it spends its time, with `py-spy dump`; " + _leave_out(name)
        yield Remark("node_behind", text, todo, name, first.rank if len(mine) == 1 else None, node.quotes)


def throttled(facts: RunFacts) -> Iterator[Remark]:
    """GPUs at work from which something takes clocks away."""
    gpus = [(node, gpu) for node in facts.nodes for gpu in node.used]
    todo = "tell the site, it is cooling or power; until then leave it out: hpc-launch resubmit RUN --exclude {}"
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
        rest = _others([clock for _, _, clock in busy], at)
        if mhz < CLOCK_BELOW * rest and (node.name, gpu.index) not in slowed:
            text = f"GPU {gpu.index} of {node.name} runs at {mhz:.0f} MHz, the others at {rest:.0f} MHz"
            yield Remark("clocks_throttled", text, todo.format(node.name), node.name, quotes=node.quotes)


def _is_late(share: float, rest: float) -> bool:
    return rest >= WAITING_MOST and share <= rest - BEHIND_BY


def _others(values: Sequence[float], at: int) -> float:
    return median([*values[:at], *values[at + 1 :]])


def _leave_out(node: str) -> str:
    if " " in node:  # part of one machine, not a name of Slurm's
        return "see what else runs there"
    return (
        f"see what else runs on {node}, and how warm it is; if it stays behind, leave it out: "
        f"hpc-launch resubmit RUN --exclude {node}"
    )


def _in_words(place: str) -> str:
    if place == "running":
        return "computing"
    if "nanosleep" in place:
        return "in a sleep"
    return f"in the kernel at {place}"
