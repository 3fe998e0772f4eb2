"""Walltime and cost of a training in jobs that follow each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hpc_launch.estimate.step_time import Walltime

HOUR = 3600.0


def test_jobs_under_a_limit() -> None:
    need = Walltime(steps=1000, step_s=36, start_s=300, limit_s=4 * HOUR, lead_s=300, gpus=8)
    assert need.jobs == 3, "10 h of training in jobs with 3 h 50 m for it"
    assert need.wall_s == 10 * HOUR + 3 * 300
    assert need.gpu_hours == pytest.approx(82)


def test_without_a_limit_one_job_does_it() -> None:
    assert Walltime(steps=10, step_s=1).jobs == 1


def test_a_job_too_short_for_a_step_has_no_answer() -> None:
    need = Walltime(steps=10, step_s=100, start_s=60, limit_s=120)
    assert (need.jobs, need.wall_s, need.gpu_hours) == (None, None, None)


@given(some.integers(1, 10**6), some.floats(0.01, 1e3), some.floats(0, 1e3), some.floats(60, 1e6))
def test_the_jobs_have_time_for_every_step(steps: int, step_s: float, start_s: float, limit_s: float) -> None:
    need = Walltime(steps=steps, step_s=step_s, start_s=start_s, limit_s=limit_s)
    if need.jobs is not None:
        assert need.jobs * (limit_s - start_s) >= steps * step_s * (1 - 1e-9)
