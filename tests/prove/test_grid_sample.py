"""A sample of the grid of faults, each cell a run on this machine; `python -m tests.prove grid` plays the rest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.prove.grid.cells import OUTSIDE, PLACES, RANKS, faults, sample
from tests.prove.grid.play import play

CELLS, TORCHRUN = 20, 3
AT_ONCE = 6
"""They wait most of the time."""
ONLY_CLOSED = {"torn"}
"""Kinds of which the open half has no cell with these launchers."""


def test_the_sample_has_every_kind_of_fault_everywhere_and_at_every_moment() -> None:
    chosen = sample(CELLS, TORCHRUN)
    assert len(set(chosen)) == CELLS
    assert {cell.kind for cell in chosen} == {what.partition(":")[0] for what, _, _ in faults()} - ONLY_CLOSED
    assert {cell.when for cell in chosen} == set(PLACES)
    assert {cell.who for cell in chosen} == {*RANKS, *OUTSIDE}
    assert all(cell.open for cell in chosen)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_a_sample_of_the_grid_gets_the_right_answers() -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(play, sample(CELLS, TORCHRUN)))
    wrong = [f"python -m tests.prove grid {one.key}\n  {'; '.join(one.wrong)}" for one in outcomes if one.wrong]
    assert not wrong, "repeat them:\n" + "\n".join(wrong)
