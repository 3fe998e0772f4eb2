"""The steps, losses and learning rates of an attempt by time, from its log.

A log may have many gigabytes: only a few places are read, and the times of given steps are found by bisection. As in
progress_reader.py, the bytes read and the time of a search are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.plan_record import PlanRecord, progress_patterns
from hpc_launch.runs.status.progress_reader import first_step, integer, newest_step, number, tail_lines

WINDOW = 32 << 10
"""Bytes before a place of the log that are searched for a step."""
BACK = 4
"""Number of earlier places that are searched where one shows no step."""

LEARNING_RATE = re.compile(r"(?i)\b(?:lr|learning[_ ]?rate)\b[\"']?[:= ]{0,3}([0-9.]{1,20}(?:e[-+]?[0-9]{1,3})?)")
"""As Lightning, Transformers, Megatron-LM and most loops print it beside the step."""
STEADY_S = 60.0
"""Imports and set-up write a few lines; what still writes after so long is the training."""

Growth = tuple[tuple[float, int], ...]
"""When the log had which size; times are seconds since the epoch, sizes bytes."""


class StepCurve:
    """The steps of one attempt by time. Reads the log when it is asked; never raises."""

    def __init__(
        self,
        attempt: AttemptFolder,
        plan: PlanRecord,
        growth: Iterable[tuple[float, int]],
        saves: Iterable[tuple[float, float]] = (),
    ) -> None:
        self._attempt = attempt
        self._patterns = progress_patterns(plan)
        self._steps: dict[int, int | None] = {}
        self._losses, self._rates = dict[int, float](), dict[int, float]()
        self._most = 0
        points = sorted(growth)
        # Without those at which the log had not grown: it was rewritten, or clocks differ.
        self.growth: Growth = tuple(points[:1] + [new for old, new in pairwise(points) if new[1] > old[1]])
        self.saves = tuple(saves)
        """From when to when rank 0 saved."""

    @property
    def has_steps(self) -> bool:
        """Whether the job says how its log shows steps."""
        return "step" in self._patterns

    @property
    def steady(self) -> bool:
        """Whether the log kept growing for STEADY_S, without its last lines, which may be a traceback."""
        return len(self.growth) > 3 and self.growth[-2][0] - self.growth[0][0] >= STEADY_S

    def step(self, at: int) -> int | None:
        """The newest step when the log had grown for the time `at`."""
        for place in range(at, max(-1, at - BACK), -1):
            step = self._read(place)
            if step is not None:
                return step
        return None

    @property
    def last(self) -> int | None:
        """The newest step of all."""
        return self.step(len(self.growth) - 1) if self.growth else None

    def first(self) -> float | None:
        """When the first step began, as far as known: by the first line with a step and the pace of the next ones."""
        if not self.growth or self.last is None:
            return None
        at = self._bisect(0)
        time, step = self.growth[at][0], self.step(at)
        earliest, head = self.growth[at - 1][0] if at else None, first_step(self._attempt)
        if earliest is None or step is None or head is None or at + 1 >= len(self.growth):
            return time
        later = self.step(at + 1)
        pace = (self.growth[at + 1][0] - time) / (later - step) if later is not None and later > step else 0.0
        return max(earliest, time - pace * (step - head + 1))

    def reached(self, step: int, began: float | None = None) -> float | None:
        """When this step was shown, interpolated between two looks at the log; None where it was not.

        `began`: when the first step began.
        """
        last = self.last
        if last is None or last < step:
            return None
        at = self._bisect(step)
        time, here = self.growth[at][0], self.step(at)
        earlier, before = (self.growth[at - 1][0], self.step(at - 1)) if at else (None, None)
        if before is None and began is not None:
            head = first_step(self._attempt)
            earlier, before = began, head - 1 if head is not None else None
        if earlier is None or before is None or here is None or here <= before or step <= before:
            return time
        return earlier + (time - earlier) * (step - before) / (here - before)

    def points(self, most: int) -> list[tuple[float, int]]:
        """At most so many points of the curve: time and step."""
        found = [(self.growth[at][0], self.step(at)) for at in _spread(len(self.growth), most)]
        return [(time, step) for time, step in found if step is not None]

    def losses(self, most: int, *, rates: bool = False) -> list[tuple[int, float]]:
        """At most so many steps with their loss, or learning rate, by lines with both. `points` chooses the places."""
        values = self._rates if rates else self._losses
        steps = sorted(values)
        return [(steps[at], values[steps[at]]) for at in _spread(len(steps), most)]

    def _bisect(self, step: int) -> int:
        """The first point at which this step was reached; the last one reached it."""
        low, high = 0, len(self.growth) - 1
        while low < high:
            middle = (low + high) // 2
            here = self.step(middle)
            if here is not None and here >= step:
                high = middle
            else:
                low = middle + 1
        return low

    def _read(self, at: int) -> int | None:
        if at not in self._steps:
            size, over = self.growth[at][1], at == len(self.growth) - 1
            try:
                lines = tail_lines(self._attempt.first_log, WINDOW, before=size, over=over)
            except OSError:
                lines = []
            self._steps[at] = self._search(lines)
        return self._steps[at]

    def _search(self, lines: list[str]) -> int | None:
        steps, losses = self._patterns.get("step"), self._patterns.get("loss")
        found = [(match, line) for line in lines if (match := steps.search(line))] if steps is not None else []
        newest = newest_step([match for match, _ in found], self._most)
        self._most = max([self._most, *(integer(match, 2) or 0 for match, _ in found if match.re.groups > 1)])
        for match, line in found:
            step, shown = integer(match, 1), match.re.groups < 2 or integer(match, 2) == self._most
            for values, pattern in ((self._losses, losses), (self._rates, LEARNING_RATE)):
                value = number(seen) if pattern is not None and (seen := pattern.search(line)) else None
                if step is not None and value is not None and shown:
                    values[step] = value
        return integer(newest, 1) if newest is not None else None


def _spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers below `count`, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)})
