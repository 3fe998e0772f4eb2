"""What Slurm 22.05.8 printed for known jobs (captured/), and whatever else it might print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.schedulers.scheduler import JobRecord
from hpc_launch.schedulers.slurm import parse_jobs
from tests.cluster.requirements import REPOSITORY

PARTS = REPOSITORY / "slurm_templates" / "parts"
CAPTURED = Path(__file__).with_name("captured")
NOW = 1795254480.0


def captured(name: str) -> dict[str, JobRecord]:
    read = {"squeue": parse_jobs.squeue, "sacct": parse_jobs.sacct}[name]
    return {record.job_id: record for record in read((CAPTURED / f"{name}.txt").read_text(), NOW)}


def ends(records: dict[str, JobRecord], *job_ids: str) -> list[tuple[str, int | None, int | None]]:
    return [(records[one].state, records[one].exit_code, records[one].signal) for one in job_ids]


def test_squeue() -> None:
    jobs = captured("squeue")
    assert len(jobs) == 16
    assert jobs["1"].name == "a b|c=d UserId=x"
    assert (jobs["1"].submitted, jobs["1"].started, jobs["1"].ended) == (1795254463, 1795254463, 1795254464)
    assert ends(jobs, "1", "2", "3") == [("COMPLETED", 0, None), ("FAILED", 137, None), ("FAILED", None, 9)]
    # The start and end of a job that waits, and the end of one that runs, are guesses of the scheduler.
    assert (jobs["9"].started, jobs["9"].ended, jobs["11"].ended) == (None, None, None)
    assert (jobs["9"].expected_start, jobs["4"].expected_start, jobs["11"].expected_start) == (1795254585, None, None)
    assert jobs["9"].reason == "launch failed requeued held"
    assert (jobs["10"].state, jobs["10"].restarts, jobs["10"].exit_code) == ("PENDING", 1, None)
    assert {"6+0", "6+1", "8_[0,2,4,6,8%2]"} <= set(jobs)
    assert jobs["11"].nodes == "n4"


def test_sacct() -> None:
    jobs = captured("sacct")
    assert jobs["1"].name == "a b|c=d UserId=x"
    assert (jobs["1"].exit_code, jobs["1"].derived_exit_code) == (0, 7)
    assert jobs["1"].steps == (("batch", "COMPLETED", "0:0"), ("0", "FAILED", "7:0"))
    assert ends(jobs, "3", "12", "5_3") == [("FAILED", None, 9), ("CANCELLED", None, None), ("FAILED", 3, None)]
    assert (jobs["11"].state, jobs["11"].ended) == ("RUNNING", None)
    assert (jobs["10"].state, jobs["10"].ended_for_good) == ("REQUEUED", False)
    assert jobs["13"].nodes is None


HEADER = "JobID|State|ExitCode|DerivedExitCode|Submit|Start|End|NodeList|Reason|JobName\n"


def test_the_newest_row_of_a_requeued_job_counts() -> None:
    text = HEADER + (
        "32|PREEMPTED|0:0|0:0|100|101|106|n[1-2]|None|run\n32.batch|CANCELLED|0:15||101|101|106|n1||batch\n"
        "32|COMPLETED|0:0|0:0|106|128|132|n[1-2]|BeginTime|run\n32.batch|COMPLETED|0:0||128|128|132|n1||batch\n"
    )
    (job,) = parse_jobs.sacct(text, NOW)
    assert (job.state, job.restarts, job.submitted) == ("COMPLETED", 1, 106)
    assert job.steps == (("batch", "COMPLETED", "0:0"),)


def test_the_highest_exit_code_of_an_earlier_start_is_not_believed() -> None:
    head = "JobID|State|ExitCode|DerivedExitCode|Submit|Start|End|Restarts|JobName\n"
    first = "7|REQUEUED|0:0|0:0|10|11|12|0|train\n7.0|CANCELLED|0:15||11|11|12||sh\n"
    second = "7|COMPLETED|0:0|0:15|12|33|34|1|train\n"
    (unknown,) = parse_jobs.sacct(head + first + second, 0)
    assert unknown.derived_exit_code is None
    (fine,) = parse_jobs.sacct(head + first + second + "7.0|COMPLETED|0:0||33|33|34||sh\n", 0)
    assert (fine.derived_exit_code, fine.restarts) == (0, 1)
    (failed,) = parse_jobs.sacct(head + first + second + "7.0|CANCELLED|0:15||33|33|34||sh\n", 0)
    assert failed.derived_exit_code == 143


def test_the_accounting_may_learn_of_the_end_of_a_step_after_that_of_the_job() -> None:
    job = HEADER + "8|COMPLETED|0:0|0:0|10|11|12|n1|None|train\n8.batch|COMPLETED|0:0||11|12|12|n1||batch\n"
    (early,) = parse_jobs.sacct(job + "8.0|RUNNING|0:0||11|11|Unknown|n1||sh\n", NOW)
    assert early.derived_exit_code is None
    (late,) = parse_jobs.sacct(job + "8.0|FAILED|7:0||11|11|13|n1||sh\n", NOW)
    assert late.derived_exit_code == 7
    (fine,) = parse_jobs.sacct(job + "8.0|COMPLETED|0:0||11|11|13|n1||sh\n", NOW)
    assert fine.derived_exit_code == 0


def test_a_step_beside_the_training_that_was_killed_is_no_failure_of_it() -> None:
    job = HEADER + "9|COMPLETED|0:0|0:9|10|11|99|n1|None|train\n9.batch|COMPLETED|0:0||11|12|99|n1||batch\n"
    beside = "9.1|CANCELLED|0:9||40|40|99|n1||hpc-launch\n"
    (fine,) = parse_jobs.sacct(job + "9.0|COMPLETED|0:0||11|11|39|n1||sh\n" + beside, NOW)
    assert (fine.derived_exit_code, [step[0] for step in fine.steps]) == (0, ["batch", "0"])
    (failed,) = parse_jobs.sacct(job + "9.0|FAILED|7:0||11|11|39|n1||sh\n" + beside, NOW)
    assert failed.derived_exit_code == 9 + 128


def test_the_script_names_each_step_beside_the_training() -> None:
    lines = [line for part in PARTS.glob("*.sh") for line in part.read_text().splitlines()]
    steps = [line for line in lines if re.search(r'\bsrun (--[a-z]|")', line)]
    assert len(steps) > 3
    steps = [line for line in steps if "command srun" not in line]  # passed on by a function with the name
    assert [line for line in steps if f"--job-name={parse_jobs.OWN_STEP} " not in line] == []


def test_an_end_without_its_time_is_not_believed() -> None:
    assert parse_jobs.sacct(HEADER + "53|FAILED|0:0|0:0|100|100|Unknown|n1|None|nodbd\n", NOW) == []


def test_a_zero_exit_code_of_a_job_that_did_not_complete_is_not_believed() -> None:
    (job,) = parse_jobs.sacct(HEADER + "27|TIMEOUT|0:0|0:0|100|100|200|n1|None|late\n", NOW)
    assert (job.exit_code, job.signal) == (None, None)


def test_an_older_job_that_had_the_same_id_is_no_restart() -> None:
    text = HEADER + "7|COMPLETED|0:0|0:0|100|100|200|n1|None|other\n7|FAILED|1:0|0:0|900|900|950|n1|None|mine\n"
    (job,) = parse_jobs.sacct(text, NOW)
    assert (job.name, job.state, job.restarts) == ("mine", "FAILED", 0)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        pytest.param([], 1130.0, id="as Slurm 22.05, 24.11 and 26.05 print it"),
        pytest.param([("by 0", "by 4242")], None, id="cancelled by a user"),
        pytest.param(
            [("1130|1130", "1141|1141"), ("1131|1131", "1141|1141")], None, id="cancelled by root, after one start"
        ),
        pytest.param([("|1142|", "|1500|")], None, id="cancelled by root, after the second start"),
        pytest.param([("n[1-2]|Begin", "None assigned|Begin")], None, id="cancelled by root, before the second start"),
    ],
)
def test_a_job_that_slurm_cancels_because_its_controller_lost_the_start(
    changes: list[tuple[str, str]], lost: float | None
) -> None:
    """Slurm cancels it as root when the nodes, where it runs, refuse to start it again under the same id."""
    text = (
        "1|CANCELLED by 0|0:0|0:0|1121|1141|1142|n[1-2]|BeginTime|run\n"
        "1.batch|CANCELLED|||1130|1130|1143|n1||batch\n1.0|CANCELLED|0:0||1131|1131|1141|n[1-2]||sh\n"
    )
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (job,) = parse_jobs.sacct(HEADER + text, NOW)
    assert (job.state, job.lost_start) == ("CANCELLED", lost)


def test_newer_columns_are_asked_for_where_sacct_knows_them() -> None:
    assert "Restarts" not in parse_jobs.sacct_columns("Account  State\nJobName")
    assert parse_jobs.sacct_columns("JobID Restarts State")[-2:] == ("Restarts", "JobName")
    header = HEADER.replace("JobName", "Restarts|JobName")
    (job,) = parse_jobs.sacct(header + "9|RUNNING|0:0|0:0|100|100|Unknown|n1|None|3|x\n", NOW)
    assert job.restarts == 3


@pytest.mark.parametrize(
    ("text", "state"), [("CANCELLED by 1000", "CANCELLED"), ("CANCELLED+", "CANCELLED"), ("", "UNKNOWN")]
)
def test_states(text: str, state: str) -> None:
    assert parse_jobs.base_state(text) == state


def test_times() -> None:
    assert parse_jobs.epoch("1795254463") == 1795254463
    assert all(parse_jobs.epoch(text) is None for text in ("Unknown", "None", "N/A", "", "0", "²"))
    iso = parse_jobs.epoch("2026-11-20T12:22:27")
    assert iso is not None
    assert 1795000000 < iso < 1796000000


def test_an_id_is_answered_by_the_row_that_stands_for_it() -> None:
    jobs = captured("squeue").values()

    def answer(job_id: str) -> str | None:
        record = parse_jobs.pick(job_id, jobs)
        return record.job_id if record else None

    assert answer("8_4") == "8_[0,2,4,6,8%2]"
    assert answer("8_5") is None
    assert answer("8") == "8_[0,2,4,6,8%2]"
    assert answer("6") == "6+0"
    assert answer("5_1") == "5_1"
    assert answer("5") == "5_1"  # failed, where 5_0 completed
    assert answer("99") is None


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("12_[5-499]|CANCELLED by 1000|0:0|0:0|100|None|200|None assigned|None|x", "CANCELLED"),
        ("12|CANCELLED by 1000|0:0|0:0|100|None|200|None assigned|None|x", "CANCELLED"),
        ("12|CANCELLED|0:0|0:0|100|200|200|None assigned|None|x", "CANCELLED"),
        ("12|PENDING|0:0|0:0|100|Unknown|Unknown|None assigned|None|x", None),
    ],
)
def test_the_rest_of_an_array_that_ended_has_one_row_in_the_accounting(rest: str, expected: str | None) -> None:
    own = "12_0|COMPLETED|0:0|0:0|100|110|150|n1|None|x"
    table = parse_jobs.RecordTable(parse_jobs.sacct(f"{HEADER}{own}\n{rest}\n", NOW))
    found = [table.pick(f"12_{task}") for task in (5, 7, 499)]
    assert [one.state if one is not None else None for one in found] == [expected] * 3
    first = table.pick("12_0")
    assert first is not None
    assert first.state == "COMPLETED"
    assert table.pick("13_5") is None


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 9), st.integers(0, 4000))
def test_ranges(first: int, length: int, step: int, index: int) -> None:
    row = f"12_[{first}-{first + length}:{step},9000%5]"
    assert parse_jobs.covers(row, f"12_{index}") == (index in range(first, first + length + 1, step))
    assert parse_jobs.covers(row, "12_9000")
    assert not parse_jobs.covers(row, f"13_{index}")


FIELD = st.text(st.characters(blacklist_characters="\n"), max_size=30) | st.sampled_from(
    ["12", "12_3", "12+0", "12_[1-3%2]", "12.batch", "RUNNING", "FAILED", "0:9", "1:0", "N/A", "1795254463", "9" * 30]
)


@given(st.lists(st.lists(FIELD, max_size=12).map("|".join), max_size=6).map("\n".join))
def test_nothing_that_slurm_prints_is_too_odd(text: str) -> None:
    for records in (parse_jobs.squeue(text, NOW), parse_jobs.sacct(HEADER + text, NOW), parse_jobs.sacct(text, NOW)):
        for record in records:
            assert parse_jobs.JOB_ID.fullmatch(record.job_id)
            assert parse_jobs.pick(record.job_id, records) is not None


@given(st.text(st.characters(blacklist_categories=["Cc", "Cs", "Zl", "Zp"], blacklist_characters="\x85"), max_size=60))
def test_a_name_comes_back_as_it_is(name: str) -> None:
    line = f"7|RUNNING|None|0|0|1795254463|1795254463|N/A|n1|{name}|"
    assert [record.name for record in parse_jobs.squeue(line, NOW)] == [name]
