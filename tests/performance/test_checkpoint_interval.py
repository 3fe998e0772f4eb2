"""The interval between checkpoints that loses the least: what it is measured from, and when nothing is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hpc_launch.performance.measured_pace import CheckpointInterval, Exposure, checkpoint_interval, exposure_of
from hpc_launch.performance.time_account import AttemptTimes
from hpc_launch.runs.layout import RunFolder
from hpc_launch.view.state_text import interval_json, interval_text

HOUR = 3600.0
SEEN = Exposure(100 * HOUR, 5)


def saved(*saves: tuple[float, float]) -> AttemptTimes:
    return AttemptTimes(1, saves=saves)


def test_young_and_daly() -> None:
    found = CheckpointInterval(42, 9, 600, Exposure(820 * HOUR, 5), 4)
    assert found.mtbf_s == 41 * HOUR
    assert found.best_s == pytest.approx((2 * 42 * 41 * HOUR) ** 0.5, rel=0.01), "Young, where the cost is small"
    assert found.lost(found.best_s) < found.lost(found.every_s or 0)


@given(
    some.floats(0.01, 1e5), some.floats(1, 1e9), some.integers(1, 1000), some.integers(1, 10_000), some.floats(0.2, 5)
)
def test_no_other_interval_loses_much_less(
    cost: float, node_s: float, failures: int, nodes: int, factor: float
) -> None:
    found = CheckpointInterval(cost, 1, None, Exposure(node_s, failures), nodes)
    assert found.best_s > 0
    if cost < found.mtbf_s / 10:
        assert found.lost(found.best_s) <= found.lost(factor * found.best_s) * 1.1


def test_files_of_one_checkpoint_count_together_and_small_saves_do_not() -> None:
    one = saved((100, 110), (111, 115), (150, 150.1), (700, 712), (1300, 1320))
    found = checkpoint_interval([one, saved((50, 61))], 2, SEEN)
    assert found is not None
    assert (found.checkpoints, found.cost_s, found.every_s) == (4, 13, 600)
    assert found.mtbf_s == 10 * HOUR
    assert interval_json(found) == {
        "cost_s": 13, "checkpoints": 4, "every_s": 600, "failures": 5, "node_hours": 100, "mtbf_s": 10 * HOUR,
        "best_s": found.best_s, "lost": found.lost(600), "best_lost": found.lost(found.best_s),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("attempts", "exposure"),
    [([saved((1, 5))], Exposure(HOUR, 0)), ([saved()], SEEN), ([], SEEN), ([saved((1, 5))], Exposure())],
)
def test_nothing_is_said_where_a_number_is_missing(attempts: list[AttemptTimes], exposure: Exposure) -> None:
    assert checkpoint_interval(attempts, 1, exposure) is None
    assert interval_json(None) is None


def test_in_words() -> None:
    known = "; 5 failures in 100 node hours of this site's runs: one in 10 h 00 m on 2 nodes"
    text = interval_text(CheckpointInterval(13, 4, 60, SEEN, 2))
    assert text == f"one takes 13 s, every 1 m 00 s, loses 21.8%; every 16 m 11 s would lose the least, 2.7%{known}"
    assert "would lose the least, 2.7%" in interval_text(CheckpointInterval(13, 1, None, SEEN, 2))
    assert "1 failure in" in interval_text(CheckpointInterval(0.5, 4, 1000, Exposure(HOUR, 1), 1))


def test_failures_and_node_hours_of_runs(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    verdicts = ["RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED", "CONTINUE", "STOP", None]
    for number, action in enumerate(verdicts, 1):
        attempt = run.attempt(number)
        attempt.path.mkdir(parents=True)
        attempt.claim.write_text("1")
        job = {"job_id": "1", "restart": 0, "started": 1000, "nodes": "n[1-3]"}
        attempt.start.write_text(json.dumps(job))
        if action is None:
            continue  # it still runs
        attempt.end.write_text(json.dumps({**job, "exit_code": 1, "ended": 1600}))
        attempt.verdict.write_text(json.dumps({"action": action}))
    (run.attempt(1).end).unlink()  # killed: its verdict tells when it was over
    run.attempt(1).verdict.write_text(json.dumps({"action": "RETRY", "time": 1700}))
    assert exposure_of([run, RunFolder(tmp_path / "none")]) == Exposure(3 * (700 + 4 * 600), 2)
