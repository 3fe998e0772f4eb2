"""Some rows of the fault matrix, by the code that runs all of them; `make prove` runs the rest."""

from __future__ import annotations

import os
import random

import pytest

from tests.cluster import Cluster
from tests.prove.matrix import Matrix
from tests.prove.pages import PAGE
from tests.prove.rows import QUICK, ROWS
from tests.prove.state import State

SEED = int(os.environ.get("HPC_LAUNCH_PROVE_SEED", "4"))
SAMPLE = 4


@pytest.mark.slow
def test_some_rows_of_the_fault_matrix(cluster: Cluster) -> None:
    rows = random.Random(SEED).sample(QUICK, SAMPLE)

    with Matrix(State(None), cluster) as matrix:
        outcomes = matrix.run(rows, workers=2)

    assert {outcome.key: outcome.faults for outcome in outcomes} == {row.key: [] for row in rows}


def test_the_page_has_every_row() -> None:
    text = PAGE.read_text()
    assert [row.key for row in ROWS.values() if f"| {row.fault}" not in text] == []
