"""What the verdict on an attempt adds to the state of its run."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins

from hpc_launch.diagnose.diagnosis import Diagnosis, FirstFailure
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.status.run_status import with_verdict


@pytest.mark.parametrize(
    ("facts", "place"),
    [
        ({}, ""),
        ({"first_failure": FirstFailure("n2")}, ", first on n2"),
        ({"start": "start: 1 of 2 nodes"}, " during its start (start: 1 of 2 nodes)"),
        ({"first_failure": FirstFailure("n1"), "start": "imports"}, " during its start (imports), first on n1"),
    ],
)
def test_the_reason_names_where_it_failed(facts: dict[str, Any], place: str) -> None:
    diagnosis = to_builtins(Diagnosis("container_error", **facts))
    verdict = VerdictRecord(action="STOP", reason="enough", diagnosis=diagnosis)
    found = with_verdict("FAILED", "the training ended with exit code 1", verdict)
    assert found == ("FAILED", f"the training ended with exit code 1{place}; no other attempt: enough")
