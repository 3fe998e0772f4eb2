"""The state of an attempt from its sources: the table of what was agreed, and properties over all that may come."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles
from hpc_launch.runs.records.submission import Claim, parse_claim
from hpc_launch.runs.status.attempt_state import observe
from hpc_launch.runs.status.attempt_view import AttemptView, SchedulerAnswer
from hpc_launch.runs.status.run_status import RUN_STATES, STATE_SOURCES, STATES, run_state
from hpc_launch.schedulers.scheduler import ENDED_STATES, LIVE_STATES, JobRecord
from tests.runs.samples import as_records, files

NOW = 1_000_000.0
ATTEMPT = AttemptFolder(Path("/runs/tiny-1/attempts/001"))
FILES = files(
    ATTEMPT,
    job={"job_id": "7", "submitted": NOW - 500, "restart": 0},
    claim=Claim(job_id="7"),
    start={"job_id": "7", "restart": 0, "started": NOW - 400, "nodes": "n[1-3]"},
    output=True,
)


def replace(before: AttemptFiles, **data: Any) -> AttemptFiles:
    """The same with other files, given as JSON."""
    return dataclasses.replace(before, **as_records(data))


QUEUED = replace(FILES, claim=None, start=None, output=False)


def ended(exit_code: int = 0, signal: str = "", ago: float = 20.0, **more: Any) -> dict[str, Any]:
    record = {"job_id": "7", "restart": 0, "exit_code": exit_code, "signal": signal, "phase": "train"}
    return {**record, "started": NOW - 400, "ended": NOW - ago, "warned": False, "nodes": "n[1-3]", **more}


def record(state: str, *, ago: float = 5.0, source: str = "squeue", **more: Any) -> JobRecord:
    over = {"ended": NOW - 15} if state in ENDED_STATES else {}
    return JobRecord(**{"job_id": "7", "state": state, "source": source, "as_of": NOW - ago, **over, **more})


def case(files: AttemptFiles, said: JobRecord | None = None, **more: Any) -> AttemptView:
    return AttemptView(files, SchedulerAnswer(said, NOW - 5), NOW, **more)


KILLED = replace(FILES, end=ended(143, "TERM", ago=100))
UNKNOWN, RUNNING = ("UNKNOWN", "UNKNOWN"), ("RUNNING", "RUNNING")


def state_of(files: AttemptFiles, said: JobRecord | None = None, **more: Any) -> tuple[str, str]:
    """The attempt's word and the run's."""
    whole = case(files, said, **more)
    status = observe(whole)
    return status.state, run_state(status, whole)[0]


@pytest.mark.parametrize(
    ("files", "said", "attempt", "run"),
    [
        (AttemptFiles(ATTEMPT), None, "SUBMITTING", "SUBMITTING"),
        (replace(QUEUED, claim=Claim(void="refused: no account")), None, "VOID", "STOPPED"),
        (replace(QUEUED, claim=Claim(void="cancelled by ann")), record("PENDING"), "CANCELLED", "CANCELLED"),
        (QUEUED, record("PENDING", reason="Priority"), "PENDING", "PENDING"),
        (QUEUED, record("CONFIGURING"), "CONFIGURING", "STARTING"),
        (QUEUED, record("RUNNING"), "RUNNING", "STARTING"),
        (replace(FILES, output=False), record("RUNNING"), "RUNNING", "STARTING"),
        (FILES, record("RUNNING"), "RUNNING", "RUNNING"),
        (FILES, record("SUSPENDED"), "SUSPENDED", "RUNNING"),
        (FILES, record("COMPLETING"), "COMPLETING", "ENDING"),
        (FILES, None, "UNKNOWN", "UNKNOWN"),
        (replace(FILES, end=ended()), record("RUNNING", ago=25), "COMPLETED", "COMPLETED"),
        (replace(FILES, end=ended(ago=0.5)), record("RUNNING", ago=3), "COMPLETING", "ENDING"),
        (replace(FILES, end=ended(ago=0.5)), None, "COMPLETING", "ENDING"),  # forgotten at once, as others may not know
        (replace(FILES, end=ended()), record("COMPLETED"), "COMPLETED", "COMPLETED"),
        (replace(FILES, end=ended()), None, "COMPLETED", "COMPLETED"),
        (replace(FILES, end=ended(3)), record("RUNNING", ago=25), "FAILED", "FAILED"),
        (replace(FILES, end=ended(3)), record("COMPLETED"), "FAILED", "FAILED"),
        (replace(FILES, end=ended(0, "TERM")), record("COMPLETED"), "FAILED", "FAILED"),
        (replace(FILES, end=ended(143, "TERM")), record("RUNNING", ago=25), "COMPLETING", "ENDING"),
        (replace(FILES, end=ended(143)), record("COMPLETING"), "COMPLETING", "ENDING"),
        (replace(FILES, end=ended(143, "TERM")), record("CANCELLED"), "CANCELLED", "CANCELLED"),
        (replace(FILES, end=ended(143, "TERM")), record("TIMEOUT"), "TIMEOUT", "FAILED"),
        (replace(FILES, end=ended(0)), record("OUT_OF_MEMORY"), "OUT_OF_MEMORY", "FAILED"),
        (replace(FILES, end=ended(0)), record("NODE_FAIL"), "NODE_FAIL", "FAILED"),
        (replace(FILES, end=ended(0)), record("FAILED", exit_code=2), "FAILED", "FAILED"),
        (replace(FILES, cancel={"by": "ann"}), record("NODE_FAIL"), "NODE_FAIL", "CANCELLED"),
        (replace(FILES, cancel={"by": "ann"}, end=ended(143)), record("FAILED"), "FAILED", "CANCELLED"),
        (replace(FILES, cancel={"by": "ann"}, end=ended(0)), record("COMPLETED"), "COMPLETED", "COMPLETED"),
        (replace(FILES, end=ended(0)), record("COMPLETED", derived_exit_code=125), "FAILED", "FAILED"),
        (FILES, record("COMPLETED"), "UNKNOWN", "UNKNOWN"),
        (FILES, record("COMPLETED", ended=NOW - 31), "FAILED", "FAILED"),
        (FILES, record("FAILED", source="sacct", ended=None), "UNKNOWN", "UNKNOWN"),
        (replace(FILES, end=ended()), record("RUNNING", ago=-100), "COMPLETING", "ENDING"),
        # An end record of another job, or of another start of it.
        (replace(FILES, end=ended(job_id="8")), record("RUNNING"), "RUNNING", "RUNNING"),
        (replace(FILES, end=ended(restart=3)), record("RUNNING"), "RUNNING", "RUNNING"),
        # Requeued.
        (KILLED, record("PENDING", restarts=1, reason="BeginTime"), "REQUEUED", "PENDING"),
        (KILLED, record("RUNNING", restarts=1), "REQUEUED", "STARTING"),
        (KILLED, record("PENDING"), "REQUEUED", "PENDING"),
        (KILLED, record("CANCELLED", restarts=1), "REQUEUED", "CANCELLED"),
        (KILLED, record("COMPLETED", restarts=1), "REQUEUED", "FAILED"),
        # An answer from before the requeue is not about this attempt.
        (replace(FILES, job={"job_id": "7", "restart": 2}, start=None), record("NODE_FAIL", restarts=1), *UNKNOWN),
        (replace(FILES, job={"job_id": "7", "restart": 2}, start=None), record("RUNNING", restarts=2), *RUNNING),
        # The start record is newer than the queue.
        (replace(FILES, output=False), record("PENDING", ago=405), "RUNNING", "STARTING"),
        # A program that prints nothing does not start for ever.
        (
            replace(FILES, start={"job_id": "7", "restart": 0, "started": NOW - 700}, output=False),
            record("RUNNING"),
            *RUNNING,
        ),
        # Ids are used again when a cluster is set up again: a job of another name is another job.
        (replace(QUEUED, intent={"job_name": "ours.abc.1"}), record("RUNNING", name="theirs"), *UNKNOWN),
        (
            replace(QUEUED, intent={"job_name": "ours.abc.1"}),
            record("RUNNING", name="ours.abc.1"),
            "RUNNING",
            "STARTING",
        ),
    ],
)
def test_the_table(files: AttemptFiles, said: JobRecord | None, attempt: str, run: str) -> None:
    assert state_of(files, said) == (attempt, run)


@pytest.mark.parametrize(
    ("files", "said", "outcome"),
    [
        (QUEUED, record("CANCELLED"), ("cancelled_by_user", "STOP")),
        (replace(QUEUED, claim=Claim(void="cancelled by ann")), None, ("cancelled_by_user", "STOP")),
        # Slurm revoked its nodes: nobody cancelled it.
        (QUEUED, record("CANCELLED", nodes="n1"), (None, None)),
        (FILES, record("CANCELLED"), (None, None)),  # its logs may say why
        (replace(FILES, end=ended()), record("COMPLETED"), ("success", "NONE")),
    ],
)
def test_what_needs_no_diagnosis_has_a_class(
    files: AttemptFiles, said: JobRecord | None, outcome: tuple[str | None, str | None]
) -> None:
    status = observe(case(files, said))
    assert (status.failure_class, status.verdict) == outcome


def test_a_step_that_failed_inside_a_success_is_told() -> None:
    steps = (("batch", "COMPLETED", "0:0"), ("0", "OUT_OF_MEMORY", "0:125"))
    status = observe(case(replace(FILES, end=ended()), record("COMPLETED", steps=steps, source="sacct")))

    assert status.state == "FAILED"
    assert status.reason == "step 0 ended OUT_OF_MEMORY with 0:125 although the script ended with 0"


def test_the_claim_says_whose_the_attempt_is() -> None:
    changed = replace(FILES, claim=Claim(job_id="8"), start=None)

    status = observe(case(changed, record("RUNNING")))

    assert (status.job_id, status.state) == ("8", "UNKNOWN")


def test_a_scheduler_that_does_not_answer_is_named_with_the_last_word() -> None:
    answer = SchedulerAnswer(record("RUNNING", ago=300), NOW - 300, "Unable to contact slurm controller")

    status = observe(AttemptView(FILES, answer, NOW))

    assert (status.state, status.age_s) == ("RUNNING", 300.0)
    assert "has not answered since: Unable to contact" in (status.reason or "")


def test_a_success_needs_no_answer() -> None:
    answer = SchedulerAnswer(record("RUNNING", ago=300), NOW - 300, "Unable to contact slurm controller")

    assert observe(AttemptView(replace(FILES, end=ended()), answer, NOW)).state == "COMPLETED"
    assert observe(AttemptView(replace(FILES, end=ended(143, "TERM")), answer, NOW)).state == "COMPLETING"


def test_a_cancel_on_record_names_who() -> None:
    changed = replace(FILES, cancel={"by": "ann"})

    assert observe(case(changed, record("CANCELLED"))).reason == "cancelled by ann"
    assert state_of(replace(changed, end=ended(1)), record("RUNNING", ago=25)) == ("COMPLETING", "ENDING")
    assert state_of(replace(changed, end=ended(1))) == ("CANCELLED", "CANCELLED")


def test_a_later_attempt_of_the_same_job_ends_the_earlier() -> None:
    preempted = {"job_id": "7", "state": "PREEMPTED", "source": "sacct", "as_of": NOW, "ended": NOW}

    assert observe(case(FILES, record("RUNNING"), superseded=True)).state == "REQUEUED"
    assert observe(case(replace(FILES, final=preempted), record("RUNNING"), superseded=True)).state == "PREEMPTED"


def test_a_reason_that_never_passes_is_stuck() -> None:
    whole = case(QUEUED, record("PENDING", reason="PartitionTimeLimit"))
    state, reason = run_state(observe(whole), whole)
    assert (state, "shorten it: scontrol update jobid=" in (reason or "")) == ("STUCK", True)


def test_what_may_take_long_is_said_of_a_job_that_waits() -> None:
    whole = case(QUEUED, record("PENDING", reason="PartitionDown"))
    state, reason = run_state(observe(whole), whole)
    assert (state, "starts no jobs at present" in (reason or "")) == ("PENDING", True)


def test_an_end_after_the_warning_says_so() -> None:
    status = observe(case(replace(FILES, end=ended(warned="1")), record("COMPLETED")))

    assert status.state == "COMPLETED"
    assert "after a warning" in (status.reason or "")


def test_claims() -> None:
    assert parse_claim("7\n") == Claim(job_id="7")
    assert parse_claim("void never submitted\n") == Claim(void="never submitted")
    assert parse_claim("void refused: no account") == Claim(void="refused: no account")
    assert parse_claim("7" * 10**6) == Claim(job_id="7" * 4000)
    assert parse_claim(" \n") is None


words = st.sampled_from(sorted(LIVE_STATES | ENDED_STATES | {"", "COMPLETED", "GIBBERISH"}))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
junk = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))
times = st.one_of(st.floats(NOW - 1000, NOW + 1000), st.sampled_from(["2024-01-01T00:00:00", "soon"]), junk)
numbers = st.one_of(st.sampled_from([0, 1, 2, 143, "0", "1"]), junk)
ids = st.one_of(st.sampled_from(["7", "8", 7]), junk)


def data(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any] | None]:
    return st.none() | st.fixed_dictionaries({}, optional=fields)


all_files = st.builds(
    files,
    st.just(ATTEMPT),
    intent=data(time=times, overrides=junk),
    job=data(job_id=ids, submitted=times, restart=numbers),
    claim=st.none()
    | st.builds(Claim, job_id=st.sampled_from(["7", "8"]))
    | st.builds(Claim, void=st.sampled_from(["never submitted", "cancelled by x", ""])),
    start=data(job_id=ids, started=times, restart=numbers, nodes=junk),
    end=data(
        job_id=ids, restart=numbers, exit_code=numbers, signal=st.sampled_from(["", "TERM", "USR1"]) | junk,
        ended=times, started=times, warned=junk, nodes=junk, phase=junk,
    ),
    final=data(job_id=ids, state=words, source=junk, as_of=times, ended=times, derived_exit_code=numbers, steps=junk),
    cancel=data(by=junk),
    output=st.booleans(),
)  # fmt: skip
some_time = st.none() | st.floats(NOW - 1000, NOW + 1000)
records = st.builds(
    JobRecord,
    job_id=st.sampled_from(["7", "8"]),
    state=words,
    source=st.sampled_from(["squeue", "sacct", "scontrol", "local", "other"]),
    as_of=st.floats(NOW - 1000, NOW + 1000),
    reason=st.none() | st.text(max_size=5),
    exit_code=st.none() | st.integers(-1, 300),
    signal=st.none() | st.integers(0, 64),
    derived_exit_code=st.none() | st.integers(0, 300),
    nodes=st.none() | st.text(max_size=8),
    started=some_time,
    ended=some_time,
    restarts=st.none() | st.integers(0, 3),
    steps=st.lists(st.tuples(st.just("0"), words, st.just("0:9")), max_size=2).map(tuple),
)
answers = st.builds(SchedulerAnswer, st.none() | records, some_time, st.none() | st.just("away"), st.none() | words)
cases = st.builds(AttemptView, all_files, answers, st.just(NOW), superseded=st.booleans())


@given(cases)
def test_it_always_answers(whole: AttemptView) -> None:
    status = observe(whole)
    state, _ = run_state(status, whole)

    assert status.state in STATES
    assert status.source in STATE_SOURCES
    assert state in RUN_STATES


def test_a_final_state_without_a_word_says_nothing() -> None:
    end = {"job_id": "8", "exit_code": 0, "signal": "", "ended": 999000.0}
    whole = AttemptView(
        files(
            AttemptFolder(Path("/runs/tiny-1/attempts/001")),
            claim=Claim(job_id="8"),
            end=end,
            final={"state": "", "job_id": "8"},
        ),
        SchedulerAnswer(),
        1_000_000.0,
    )
    assert whole.final_record is None
    assert observe(whole).state == "COMPLETED"


@given(cases)
def test_completed_only_with_evidence_that_agrees(whole: AttemptView) -> None:
    if observe(whole).state != "COMPLETED":
        return
    word = whole.final_record
    assert whole.exit_code == 0
    assert whole.signal is None
    assert whole.files.void is None
    if word is not None:
        assert word.state == "COMPLETED"
        assert word.derived_exit_code in (None, 0)


@pytest.mark.slow
@given(cases)
def test_what_nobody_said_is_not_said(whole: AttemptView) -> None:
    status = observe(whole)

    if whole.final_record is None and whole.end is None:
        assert status.state not in {"COMPLETED", "FAILED", "TIMEOUT"}
    if whole.live is None and status.state == "RUNNING":
        raise AssertionError(status)


def test_every_word_of_slurm_has_a_place() -> None:
    assert set(STATES) >= LIVE_STATES | ENDED_STATES
