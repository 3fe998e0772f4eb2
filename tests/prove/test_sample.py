"""Some rows of the fault matrix and jobs of the node check, by the code that runs all; `make prove` runs the rest."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.marks import prove
from tests.prove import node_check
from tests.prove.grid import page as grid
from tests.prove.matrix import QUICK, ROWS, Matrix
from tests.prove.node_check_faults import JOBS
from tests.prove.pages import PAGE, matrix
from tests.prove.state import State

SEED = int(os.environ.get("HPC_LAUNCH_PROVE_SEED", "4"))
SAMPLE = 3


@pytest.mark.slow
def test_some_rows_of_the_fault_matrix(cluster: Cluster, tmp_path: Path) -> None:
    rows = random.Random(SEED).sample(QUICK, SAMPLE)

    with Matrix(State(tmp_path / "state.json"), cluster) as matrix:
        outcomes = matrix.run(rows, workers=2)

    assert {outcome.key: outcome.faults for outcome in outcomes} == {row.key: [] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("key", ["host", prove("gpus"), prove("measured")])
def test_faults_of_nodes_are_named(disturbed_cluster: Cluster, key: str) -> None:
    job = next(job for job in JOBS if job.key == key)

    outcomes = node_check.check(disturbed_cluster, job)

    assert {one["fault"]: one["wrong"] for one in outcomes if one["wrong"]} == {}, outcomes


def test_the_pages_have_every_row_and_fault() -> None:
    page, check = PAGE.read_text(), node_check.PAGE.read_text()
    assert [row.key for row in ROWS.values() if f"| {row.fault}" not in page] == []
    assert [fault.fault for job in JOBS for fault in job.faults if f"| {fault.fault} |" not in check] == []


def test_the_page_keeps_what_was_not_run_here() -> None:
    page = PAGE.read_text()
    row, other = list(ROWS)[:2]
    failed = {
        "ok": False,
        "faults": ["the node is not named"],
        "found": "unknown",
        "verdict": "",
        "node": "",
        "rank": "",
    }
    failed |= {"attempts": 1, "state": "FAILED", "resumed_s": None, "loss": None, "lost_steps": 0}
    assert matrix({}, page)[0] in page
    text, good = matrix({row: failed}, page)
    assert (text.count("**failed**"), good) == (1, len(ROWS) - 1)
    again, good = matrix({other: failed}, text)
    assert (again.count("**failed**"), again.count(": the node is not named"), good) == (2, 2, len(ROWS) - 2)


def test_the_page_has_the_results_of_the_grid() -> None:
    assert grid.section(json.loads(grid.RESULTS.read_text())) in PAGE.read_text()
