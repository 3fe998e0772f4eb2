"""An exit code of 0 is no proof that a training did its last step; and what a verdict adds to the state of a run."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins

from hpc_launch.base.json_records import as_record
from hpc_launch.diagnose.diagnosis import Diagnosis, FirstFailure
from hpc_launch.runs.records.submission import ScriptRecord
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.status.progress_reader import Progress
from hpc_launch.runs.status.run_status import finished, unfinished, with_verdict


def end(code: int = 0, **more: Any) -> ScriptRecord | None:
    data = {"exit_code": code, "warned": None, "finished": None, "saved_step": None, **more}
    return as_record(data, ScriptRecord)


@pytest.mark.parametrize(
    ("record", "progress", "answer"),
    [
        (end(), Progress(), True),
        (end(1), Progress(200, 200), False),
        (None, Progress(200, 200), False),
        (end(warned=1), Progress(), None),
        (end(warned=1, finished=True), Progress(20, 200, spacing=1), True),
        (end(), Progress(200, 200, spacing=10), True),
        (end(), Progress(120, 200, spacing=10), False),
        (end(warned=1), Progress(120, 200, spacing=10), False),
        # The log shows each tenth step of 205.
        (end(), Progress(200, 205, spacing=10), True),
        (end(warned=1), Progress(200, 205, spacing=10), None),
        (end(warned=1, saved_step=205), Progress(200, 205, spacing=10), True),
        # One line alone: nobody knows when the next one was due.
        (end(), Progress(1, 200), True),
        (end(warned=1), Progress(1, 200), None),
        (end(), Progress(120), True),
        # The program says why it left.
        (end(), Progress(12, 30, spacing=1, said="early stopping at step 12"), True),
        (end(warned=1), Progress(12, 30, spacing=1, said="stopping early: told to stop"), False),
        (end(1), Progress(12, 30, spacing=1, said="early stopping at step 12"), False),
        # Neither a step nor a checkpoint, where the job says how to find them.
        (end(), Progress(unmatched=True, saves=True), False),
        (end(), Progress(unmatched=True), True),
        (end(saved_step=3), Progress(unmatched=True, saves=True), True),
        (end(resumed_step=3), Progress(unmatched=True, saves=True), True),
        (end(finished=True), Progress(unmatched=True, saves=True), True),
        (end(warned=1), Progress(unmatched=True, saves=True), None),
    ],
)
def test_whether_a_training_did_its_last_step(
    record: ScriptRecord | None, progress: Progress, answer: bool | None
) -> None:
    assert finished(record, progress) is answer


def test_what_is_said_of_one_that_did_not() -> None:
    assert unfinished(end(), Progress(120, 200, spacing=10)) == (
        "the training ended with exit code 0 at step 120 of 200: it is not finished"
    )
    assert "after the warning" in str(unfinished(end(warned=5, saved_step=125), Progress(120, 200, spacing=10)))
    assert "step 125" in str(unfinished(end(warned=5, saved_step=125), Progress(120, 200, spacing=10)))
    assert "nothing shows that it trained" in str(unfinished(end(), Progress(unmatched=True, saves=True)))
    assert unfinished(end(warned=5), Progress()) is None
    assert unfinished(end(7), Progress(120, 200, spacing=10)) is None


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
