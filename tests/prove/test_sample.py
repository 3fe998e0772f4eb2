"""Some rows of the fault matrix and jobs of the node check, by the code that runs all; `make prove` runs the rest."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.prove import node_check
from tests.prove.matrix import QUICK, ROWS, Matrix
from tests.prove.node_check_faults import JOBS
from tests.prove.pages import PAGE
from tests.prove.state import State

SEED = int(os.environ.get("HPC_LAUNCH_PROVE_SEED", "4"))
SAMPLE = 4


@pytest.mark.slow
def test_some_rows_of_the_fault_matrix(cluster: Cluster, tmp_path: Path) -> None:
    rows = random.Random(SEED).sample(QUICK, SAMPLE)

    with Matrix(State(tmp_path / "state.json"), cluster) as matrix:
        outcomes = matrix.run(rows, workers=2)

    assert {outcome.key: outcome.faults for outcome in outcomes} == {row.key: [] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("key", ["gpus", "host", "measured"])
def test_faults_of_nodes_are_named(disturbed_cluster: Cluster, key: str) -> None:
    job = next(job for job in JOBS if job.key == key)

    outcomes = node_check.check(disturbed_cluster, job)

    assert {one["fault"]: one["wrong"] for one in outcomes if one["wrong"]} == {}, outcomes


def test_the_pages_have_every_row_and_fault() -> None:
    matrix, check = PAGE.read_text(), node_check.PAGE.read_text()
    assert [row.key for row in ROWS.values() if f"| {row.fault}" not in matrix] == []
    assert [fault.fault for job in JOBS for fault in job.faults if f"| {fault.fault} |" not in check] == []
