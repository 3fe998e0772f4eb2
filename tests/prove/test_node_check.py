"""A sample of the faults that the node check has to name; `make prove` runs the rest by the same code."""

from __future__ import annotations

import pytest

from tests.cluster import Cluster
from tests.prove.node_check import PAGE, check
from tests.prove.node_check_faults import JOBS


@pytest.mark.slow
@pytest.mark.parametrize("key", ["gpus", "host", "measured"])
def test_faults_of_nodes_are_named(disturbed_cluster: Cluster, key: str) -> None:
    job = next(job for job in JOBS if job.key == key)

    outcomes = check(disturbed_cluster, job)

    assert {one["fault"]: one["wrong"] for one in outcomes if one["wrong"]} == {}, outcomes


def test_the_page_has_every_fault() -> None:
    text = PAGE.read_text()
    assert [fault.fault for job in JOBS for fault in job.faults if f"| {fault.fault} |" not in text] == []
