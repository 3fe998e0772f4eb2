"""Why a training that runs is slower than it could be: from the watcher's samples and the log to remarks. Pure.

Nothing here is a failure, and nothing changes what follows: a remark is for a person. Each needs evidence of its own; a
training of which nothing is known gets none.
"""

from __future__ import annotations

from hpc_launch.performance.run_samples import Remark, RunFacts
from hpc_launch.performance.slow_communication import buckets, loader, nvlink, sockets
from hpc_launch.performance.slow_nodes import behind, throttled


def remarks(facts: RunFacts) -> tuple[Remark, ...]:
    """What may slow this training down, the gravest first. Never raises; facts that say nothing give none."""
    late = tuple(behind(facts))
    return (*late, *throttled(facts), *sockets(facts), *nvlink(facts), *loader(facts, late), *buckets(facts))
