"""The timeline of a run: which time counts as what, and that all of it together is the wall time, whatever is wrong."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hpc_launch.performance.time_account import CATEGORIES, AttemptTimes, TimeAccount, merged, time_account

GOOD = AttemptTimes(
    1, submitted=1, began=11, phases=((11, "preparation"), (13, "imports")), trained=20, stopped=100, ended=102
)
"""Waited for 10 s, started for 9 s, trained for 80 s."""


def times(account: TimeAccount) -> dict[str, float]:
    """The categories that have any time."""
    return {name: seconds for name, seconds in account.by_category().items() if seconds}


def test_a_run_that_ends_well() -> None:
    account = time_account([replace(GOOD, job_ended=105.0)], 0, 105)
    assert times(account) == {"queued": 11, "starting": 9, "training": 80, "ending": 5}
    assert account.phases() == {"preparation": 2, "imports": 7}
    assert account.goodput == pytest.approx(80 / 94)


def test_before_the_job_and_while_it_trains() -> None:
    assert times(time_account([], 0, 5)) == {"queued": 5}
    assert time_account([], 0, 5).goodput is None
    assert times(time_account([AttemptTimes(1, submitted=1)], 0, 50)) == {"queued": 50}
    live = replace(GOOD, stopped=None, ended=None)
    assert times(time_account([live], 0, 15)) == {"queued": 11, "starting": 4}
    assert times(time_account([live], 0, 60)) == {"queued": 11, "starting": 9, "training": 40}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"failed": 90.0, "stopped": None}, {"training": 70, "detecting": 12}),
        ({"silent_since": 60.0, "hang_found": 90.0}, {"training": 40, "stalled": 30, "detecting": 12}),
        ({"stopped": 70.0}, {"training": 50, "ending": 32}),
        ({"saves": ((30, 35), (33, 40), (99, 101))}, {"training": 69, "checkpointing": 12, "ending": 1}),
        ({"saves": ((5, 15),)}, {"training": 80, "ending": 2}),
        ({"outages": ((5, 15), (30, 40))}, {"training": 70, "restarting": 10, "ending": 2}),
        ({"caught_up": 50.0}, {"repeated": 30, "training": 50, "ending": 2}),
        ({"trained": None, "failed": 15.0, "stopped": None}, {"starting": 4, "detecting": 87}),
        ({"began": None}, {"queued": 102}),
    ],
)
def test_what_shows_in_a_run(changes: dict[str, Any], expected: dict[str, float]) -> None:
    account = times(time_account([replace(GOOD, **changes)], 0, 102))
    assert account == {"queued": 11, "starting": 9, **expected} if "queued" not in expected else account == expected


def test_silence_counts_as_stalled_only_where_it_is_far_longer_than_usual() -> None:
    quiet = replace(GOOD, stopped=1000, ended=1000, growth=(20, 30, 40, 50, 400, 410, 450, 1000))
    assert times(time_account([quiet], 0, 1000)) == {"queued": 11, "starting": 9, "training": 100, "stalled": 880}
    slow = replace(quiet, growth=tuple(range(20, 1000, 200)))
    assert times(time_account([slow], 0, 1000))["training"] == 980


def test_the_next_attempt_in_a_new_job_and_in_the_same_one() -> None:
    failed = replace(GOOD, failed=90.0, stopped=None)
    second = replace(
        GOOD, number=2, submitted=110, began=130, phases=(), trained=140, caught_up=150, stopped=200, ended=200
    )
    first = {"queued": 11, "starting": 9, "training": 70, "detecting": 12}
    account = times(time_account([failed, second], 0, 200))
    assert account == {**first, "restarting": 8, "queued": 31, "starting": 19, "repeated": 10, "training": 120}
    inside = times(time_account([failed, replace(second, same_job=True)], 0, 200))
    assert inside == {**first, "restarting": 28, "starting": 19, "repeated": 10, "training": 120}
    again = times(time_account([failed, replace(second, same_job=True, requeued=True)], 0, 200))
    assert again == {**first, "queued": 39, "starting": 19, "repeated": 10, "training": 120}
    waiting = times(time_account([failed, replace(second, submitted=12)], 0, 200))
    assert waiting["queued"] == 39, "a job that was submitted ahead waits once the one before it is over"


def test_an_attempt_without_an_end_is_over_when_the_next_one_begins() -> None:
    lost = replace(GOOD, failed=90.0, stopped=None, ended=None)
    second = AttemptTimes(2, submitted=12, began=130, trained=140, ended=150)
    account = times(time_account([lost, second], 0, 150))
    assert account == {"queued": 11, "starting": 19, "training": 80, "detecting": 40}


def test_a_run_that_waits_for_its_next_attempt_is_restarting() -> None:
    failed = replace(GOOD, failed=90.0, stopped=None, job_ended=103)
    assert times(time_account([failed], 0, 120, continues=True))["restarting"] == 18
    assert times(time_account([failed], 0, 120))["ending"] == 18


def test_spans_close_to_each_other_are_one() -> None:
    assert merged([(10, 20), (1, 3), (21, 22), (12, 15)], 1) == [(1, 3), (10, 22)]


MOMENT = some.one_of(some.none(), some.floats(-1e9, 1e9), some.floats(0, 200))
NUMBERS = {"number": some.integers(1, 9), "same_job": some.booleans(), "requeued": some.booleans()}
LISTS = {
    "phases": some.lists(some.tuples(some.floats(0, 200), some.sampled_from(["imports", "start"])), max_size=4),
    "growth": some.lists(some.floats(-1e4, 1e4), max_size=6),
    **dict.fromkeys(
        ("saves", "outages"), some.lists(some.tuples(some.floats(0, 200), some.floats(0, 200)), max_size=4)
    ),
}
ATTEMPT = some.builds(
    AttemptTimes,
    **NUMBERS,
    **{name: some.builds(tuple, found) for name, found in LISTS.items()},
    **{field.name: MOMENT for field in fields(AttemptTimes) if field.name not in {**NUMBERS, **LISTS}},
)


@given(some.lists(ATTEMPT, max_size=4), some.floats(-100, 300), some.floats(-100, 300), some.booleans())
def test_the_categories_are_the_wall_time_whatever_the_records_say(
    attempts: list[AttemptTimes], begin: float, end: float, continues: bool
) -> None:
    account = time_account(attempts, begin, end, continues=continues)
    wall = max(0.0, end - begin)
    assert set(account.by_category()) == set(CATEGORIES)
    assert all(seconds >= 0 for seconds in account.by_category().values())
    assert sum(account.by_category().values()) == pytest.approx(wall, rel=1e-6, abs=1e-6)
    assert all(one.end == two.begin for one, two in zip(account.intervals, account.intervals[1:], strict=False))
    assert sum(account.phases().values()) <= account.seconds("starting") + 1e-6


def test_many_saves_are_counted_in_little_time() -> None:
    saves = tuple((20 + at, 20.5 + at) for at in range(50_000))
    long = replace(GOOD, saves=saves, growth=tuple(range(20, 50_020)), stopped=50_020, ended=50_020)
    began = time.process_time()
    account = time_account([long, replace(long, number=2, submitted=50_020, began=50_021, trained=50_022)], 0, 60_000)
    assert account.seconds("checkpointing") == pytest.approx(25_000)
    assert time.process_time() - began < 10
