"""Limits that hold a job, and reservations that delay it."""

from __future__ import annotations

import pytest

from hpc_launch.preflight.login_checks import judge_limits, judge_reservations
from hpc_launch.schedulers.scheduler import Limit, QueueLimits, Reservation, Reservations

ASKED = {"node": 8, "cpu": 512, "gres/gpu": 32, "wall": 86400}
HOUR = 3600
NODES = frozenset({"n1", "n2", "n3", "n4"})


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (
            Limit("QOS short", "MaxTRES", "job", "node", 4),
            "QOS short: MaxTRES is node=4 per job; the job asks for 8",
        ),
        (
            Limit("account ml", "MaxWall", "job", "wall", 7200),
            "account ml: MaxWall is wall=02:00:00 per job; the job asks for 1-00:00:00",
        ),
        (
            Limit("QOS big", "MinTRES", "job", "gres/gpu", 64, least=True),
            "QOS big: MinTRES is gres/gpu=64 per job; the job asks for 32",
        ),
        (
            Limit("QOS a", "MaxTRESPerNode", "node", "gres/gpu", 1),
            "QOS a: MaxTRESPerNode is gres/gpu=1 per node; the job asks for 4",
        ),
        (
            Limit("account ml", "MaxSubmit", "user", "submitted", 3, used=3),
            "account ml: MaxSubmit is submitted=3 per user; you have 3",
        ),
    ],
)
def test_a_limit_that_the_job_exceeds_is_named(limit: Limit, words: str) -> None:
    level = judge_limits(QueueLimits((limit,)), ASKED, 8)
    assert (level.state, level.lines) == ("failed", (words,))


def test_a_job_within_its_limits() -> None:
    limits = (Limit("QOS a", "MaxTRES", "job", "node", 8), Limit("QOS a", "MaxJobsPU", "user", "jobs", 2, used=1))
    level = judge_limits(QueueLimits(limits), ASKED, 8)
    assert (level.state, level.lines) == ("ok", ("the job is within 2 limits of QOS a",))


def test_a_user_with_as_many_running_jobs_as_allowed_has_to_wait() -> None:
    level = judge_limits(QueueLimits((Limit("QOS a", "MaxJobsPU", "user", "jobs", 2, used=2),)), ASKED, 8)
    assert level.state == "ok"
    assert "waits until one of your 2 jobs ends" in level.lines[1]


@pytest.mark.parametrize(
    "found",
    [
        QueueLimits(not_checked=("account and QOS: sacctmgr timed out",)),
        QueueLimits((Limit("QOS a", "MaxTRES", "job", "billing", 100),)),
    ],
)
def test_what_cannot_be_compared_is_not_ok(found: QueueLimits) -> None:
    level = judge_limits(found, ASKED, 8)
    assert level.state == "not checked"
    assert any(line.startswith("not checked: ") for line in level.lines)


def reservation(start: float, end: float, *nodes: str, name: str = "maint") -> Reservation:
    return Reservation(name, start, end, frozenset(nodes or NODES), ("MAINT",))


def test_a_maintenance_within_the_time_limit_delays_the_job() -> None:
    found = Reservations(NODES, (reservation(2 * HOUR, 5 * HOUR),))
    level = judge_reservations(found, 4, 24 * HOUR, None, 0.0)
    assert level.state == "ok"
    assert level.lines[0].startswith("warning: reservation maint (MAINT) has 4 of 4 nodes from ")
    assert level.lines[0].endswith("unless `time` is at most 02:00:00")


@pytest.mark.parametrize(
    ("one", "nodes"),
    [
        (reservation(30 * HOUR, 40 * HOUR), 4),
        (reservation(-5 * HOUR, -HOUR), 4),
        (reservation(0, 40 * HOUR, "m1"), 4),
        (reservation(0, 40 * HOUR, "n1"), 3),
    ],
)
def test_a_reservation_that_does_not_matter(one: Reservation, nodes: int) -> None:
    level = judge_reservations(Reservations(NODES, (one,)), nodes, 24 * HOUR, None, 0.0)
    assert level.state == "ok"
    assert "warning" not in str(level.lines)


def test_a_job_without_a_time_limit_meets_every_reservation() -> None:
    level = judge_reservations(Reservations(NODES, (reservation(900 * HOUR, 901 * HOUR),)), 1, None, None, 0.0)
    assert "warning" in level.lines[0]


@pytest.mark.parametrize(
    ("named", "nodes", "limit", "words"),
    [
        ("other", 1, HOUR, "no reservation other"),
        ("maint", 5, HOUR, "has 4 nodes; the job asks for 5"),
        ("maint", 4, 4 * HOUR, "the job asks for 04:00:00"),
    ],
)
def test_a_reservation_that_does_not_fit_the_job(named: str, nodes: int, limit: int, words: str) -> None:
    found = Reservations(NODES, (reservation(2 * HOUR, 5 * HOUR),))
    level = judge_reservations(found, nodes, limit, named, 0.0)
    assert level.state == "failed"
    assert words in level.lines[0]


def test_the_nodes_of_an_unknown_partition_are_not_checked() -> None:
    assert judge_reservations(Reservations(), 1, HOUR, None, 0.0).state == "not checked"


def test_a_reservation_that_is_not_understood_is_not_ok() -> None:
    level = judge_reservations(Reservations(NODES, (), ("torn",)), 1, HOUR, None, 0.0)
    assert (level.state, level.lines) == ("not checked", ("the times of torn are not understood",))
