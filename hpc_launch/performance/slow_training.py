"""What slows a training down: slow nodes, clocks, network, NVLink, data loader. Pure, but for `attempt_remarks`.

What a job used of what it requested, by the newest samples of its watchers, and what to change. None is unknown, and
then nothing is recommended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal

from msgspec import Struct, to_builtins

from hpc_launch.agent.notify_event import MOST_NODES, SAMPLE_TAIL, uses_of
from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.performance.run_samples import RunFacts, gather
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.node_records import watcher_samples
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.status.run_status import RunStatus

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


LITTLE = 0.25
"""Whoever uses less than this part of the memory or the time requested too much."""
MARGIN = 1.3
"""Recommended memory and time, relative to what was used."""
LEAST_GIB, LEAST_S = 8.0, 1800.0
"""Of smaller requests nothing is recommended: they cost nobody anything."""
MOST_READ, MOST_EXPLAINED = 4 << 20, 16
"""Bytes of samples that are read, and nodes of which logs are read for a cause: `status` must not take seconds."""


class Efficiency(Struct, frozen=True, kw_only=True):
    """Use of a job. Memory is that of the processes, in GiB on the node with the most; times are seconds."""

    gpu_use: float | None = None
    """Mean over the GPUs, from 0 to 1."""
    gpus: int = 0
    idle_gpus: int = 0
    """GPUs that were idle in all samples."""
    memory: float | None = None
    memory_requested: float | None = None
    cpus: float | None = None
    """CPUs in use, on all nodes."""
    cpus_requested: int | None = None
    time: float | None = None
    """Of a job that ended."""
    time_requested: int | None = None
    completed: bool = False
    cause: str = ""
    """What the samples and the logs show to slow the training down, and what to do."""

    def as_json(self) -> dict[str, Any]:
        """`efficiency` of `list --json` (docs/reference/json.md)."""
        return {**to_builtins(self), "advice": self.advice}

    @property
    def order(self) -> tuple[int, float]:
        """Idle GPUs first, then the least used ones."""
        return -self.idle_gpus, 2.0 if self.gpu_use is None else self.gpu_use

    @property
    def advice(self) -> str:
        """What to change, in one sentence; '' where nothing measured supports a recommendation."""
        if self.idle_gpus:
            some = f"{self.idle_gpus} of {self.gpus} GPUs were idle in all samples"
            return f"{some}: request fewer, or start a process for each"
        if self.cause:
            return self.cause
        memory, asked = self.memory if self.completed else None, self.memory_requested
        if memory is not None and asked is not None and asked >= LEAST_GIB and memory < LITTLE * asked:
            return f"request {max(1, round(MARGIN * memory))} GiB of memory per node instead of {asked:.0f} GiB"
        time, limit = self.time if self.completed else None, self.time_requested
        if time is not None and limit is not None and limit >= LEAST_S and time < LITTLE * limit:
            return f"request {MARGIN * time / 60:.0f} minutes instead of {limit / 60:.0f}: shorter jobs start earlier"
        return ""


def cpus_between(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> float:
    """The CPUs in use between two samples of the CPU time of each process."""
    used = sum(max(0.0, spent - before.get(process, 0.0)) for process, spent in after.items())
    return used / seconds if seconds > 0 else 0.0


def run_efficiency(status: RunStatus) -> Efficiency:
    """The use of a run's newest attempt, as far as it is known, by at most MOST_NODES of its nodes. Never raises."""
    if not status.attempts:
        return Efficiency()
    last = status.attempts[-1]
    attempt = AttemptFolder(last.folder)
    plan = plan_of(attempt) or PlanRecord()
    files = [path for _, path in attempt.watcher_files()]
    files, count = files[:: 1 + len(files) // (MOST_NODES + 1)], len(files)  # evenly spread
    nodes = [list(watcher_samples(path, min(SAMPLE_TAIL, MOST_READ // len(files)))) for path in files]
    gpus = (((at, gpu.index), gpu.util) for at, node in enumerate(nodes) for one in node for gpu in one.gpus)
    uses = uses_of(gpus)
    busy = [[sample for sample in node if sample.cpu_s] for node in nodes]  # before and after, no rank is there
    cpus = [cpus_between(node[0].cpu_s, node[-1].cpu_s, node[-1].t - node[0].t) for node in busy if len(node) > 1]
    policy, remarks = plan.recovery, attempt_remarks(attempt) if uses and count <= MOST_EXPLAINED else ()
    asked = policy.memory or policy.node_memory if policy is not None and policy.memory is not None else None
    return Efficiency(
        gpu_use=fmean(map(fmean, uses)) / 100 if uses else None,
        gpus=len(uses),
        idle_gpus=sum(not any(use) for use in uses),
        memory=max((sum(sample.rss_mib.values()) / 1024 for node in nodes for sample in node), default=None),
        memory_requested=asked / 1024 if asked else None,
        cpus=sum(cpus) if cpus else None,
        cpus_requested=plan.cpus_per_node * len(cpus) if plan.cpus_per_node else None,
        time=last.ended - last.started if last.ended is not None and last.started is not None else None,
        time_requested=plan.time_limit_s,
        completed=status.state == "COMPLETED",
        cause=f"{remarks[0].text}: {remarks[0].todo}" if remarks else "",
    )
