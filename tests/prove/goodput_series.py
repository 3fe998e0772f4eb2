"""The faults of `goodput`: at the published rate of Llama 3, with the time between them divided by a scale.

The rate: arXiv 2407.21783, section 3.3.4, 419 unexpected interruptions in 54 days.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

BETWEEN_S = 54 * 86400 / 419
KINDS = {"crash": 324, "hang": 49, "node": 46}
"""GPUs, their memory and software end a process; the network and NCCL's watchdog are hangs; the rest, such as the
maintenance of hosts, takes a node away."""


@dataclass(frozen=True)
class Series:
    """Lanes whose faults come at one rate."""

    scale: int
    lanes: int
    faults: int
    """Of a lane."""
    others: int
    """Lanes of the other methods: the first ones."""

    def keys(self, method: str) -> list[str]:
        """The lanes of a method."""
        return [f"{method}-{self.scale}-{lane}" for lane in range(self.lanes if method == OURS else self.others)]

    def plan(self, lane: int) -> list[tuple[str, float]]:
        """The kind of each fault of a lane, and the seconds that the training makes steps before it.

        A Poisson process in a given time, so that all lanes take equally long.
        """
        total, count, kinds = sum(KINDS.values()), self.lanes * self.faults, []
        for kind, share in KINDS.items():
            kinds += [kind] * round(share / total * count)
        kinds = (kinds + ["crash"] * count)[:count]
        random.Random("kinds").shuffle(kinds)
        dice = random.Random(f"lane {lane}")
        gaps = [dice.expovariate(1.0) for _ in range(self.faults)]
        unit = self.faults * BETWEEN_S / self.scale / sum(gaps)
        return [(kinds[lane * self.faults + number], gap * unit) for number, gap in enumerate(gaps)]


OURS = "hpc-launch"
SERIES = (Series(12, lanes=40, faults=5, others=4), Series(75, lanes=8, faults=25, others=8))
