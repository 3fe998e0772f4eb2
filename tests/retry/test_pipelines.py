"""Pipelines: no stage twice, none forgotten, whatever happens to the drivers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.retry.pipeline_rounds import EXPECTED, play


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("seed", [1])
def test_each_stage_runs_once_whatever_happens_to_its_drivers(seed: int, tmp_path: Path) -> None:
    trained, story = play(seed, tmp_path)
    assert trained == EXPECTED, story


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(100, 150))
def test_each_stage_runs_once_in_fifty_rounds(seed: int, tmp_path: Path) -> None:
    trained, story = play(seed, tmp_path)
    assert trained == EXPECTED, story
