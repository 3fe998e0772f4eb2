"""How long a training takes, in how many jobs, and what it costs. Pure arithmetic."""

from __future__ import annotations

import math

from msgspec import Struct


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
    def training_s(self) -> float:
        """Time of the steps alone."""
        return self.steps * self.step_s

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
        return None if self.jobs is None else self.training_s + self.jobs * self.start_s

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours of all jobs together."""
        return None if self.wall_s is None else self.wall_s * self.gpus / 3600
