"""Sweeps: arrays as the limits allow, and each point trains exactly once whatever happens to its submission."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_launch.run.sweeps.array_chunks import chunks
from tests.run.sweep_rounds import POINTS, play


def test_arrays_are_as_few_as_the_limit_allows() -> None:
    made = chunks(dict.fromkeys(range(1000), "script"), 250)
    assert [len(one.tasks) for one in made] == [250] * 4
    assert [one.spec(None) for one in made] == ["0-249"] * 4
    assert made[0].tasks[7] == 7
    assert made[1].tasks[7] == 257


def test_points_with_other_slurm_options_are_in_other_arrays() -> None:
    made = chunks({0: "small", 1: "large", 2: "small", 3: "small"}, 1001)
    assert [(one.script, one.spec(2)) for one in made] == [("small", "0,2-3%2"), ("large", "1")]


@pytest.fixture
def _environment() -> object:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("seed", [1, 6, 9])
def test_each_point_trains_once_whatever_happens_to_its_submission(seed: int, tmp_path: Path) -> None:
    trained, _, story = play(seed, tmp_path)
    assert trained == {str(point): 1 for point in range(POINTS)}, story


@pytest.mark.prove
@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("seed", range(100, 150))
def test_each_point_trains_once_in_fifty_rounds(seed: int, tmp_path: Path) -> None:
    trained, _, story = play(seed, tmp_path)
    assert trained == {str(point): 1 for point in range(POINTS)}, story
