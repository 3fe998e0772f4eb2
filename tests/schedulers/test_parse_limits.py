"""Limits and reservations as sacctmgr and scontrol print them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.schedulers.scheduler import Limit
from hpc_launch.schedulers.slurm import query_cluster, query_limits

CAPTURED = (Path(__file__).parent / "captured" / "limits.txt").read_text()


def section(name: str) -> str:
    return CAPTURED.split(f"==> {name} <==\n")[1].split("==> ")[0]


def test_the_association_of_each_cluster_and_partition() -> None:
    rows = query_cluster.rows(section("sacctmgr assoc"), query_limits.ASSOCIATION)
    assert [(row["cluster"], row["partition"]) for row in rows] == [
        ("testcluster", ""),
        ("testcluster", "debug"),
        ("othercluster", ""),
    ]
    found = set(query_limits.limits_in("account ml", rows[0], {"jobs": 2, "submitted": 5}))
    assert found == {
        Limit("account ml", "MaxWall", "job", "wall", 86400),
        Limit("account ml", "MaxTRES", "job", "cpu", 256),
        Limit("account ml", "MaxTRES", "job", "gres/gpu", 16),
        Limit("account ml", "MaxTRES", "job", "mem", 3 << 19),
        Limit("account ml", "MaxTRESPerNode", "node", "cpu", 64),
        Limit("account ml", "MaxJobs", "user", "jobs", 2, used=2),
        Limit("account ml", "MaxSubmit", "user", "submitted", 10, used=5),
    }


def test_the_limits_of_a_qos() -> None:
    rows = {row["name"]: row for row in query_cluster.rows(section("sacctmgr qos"), query_limits.QOS)}
    assert set(rows) == {"normal", "gpu-long", "endless"}
    found = {(one.name, one.resource): one for one in query_limits.limits_in("QOS gpu-long", rows["gpu-long"], {})}
    assert found["MinTRES", "gres/gpu"].least
    assert found["MaxTRESPU", "gres/gpu"].scope == "user"
    assert found["GrpTRES", "gres/gpu"].amount == 128
    assert found["MaxJobsPU", "jobs"].used is None
    assert not list(query_limits.limits_in("QOS endless", rows["endless"], {}))


def test_reservations_of_nodes() -> None:
    listed, unread = query_limits.reservations_in(section("scontrol reservation"))
    found = {one.name: one for one in listed}
    assert unread == ["torn"]
    assert set(found) == {"maint", "class"}
    assert found["maint"].nodes == {"n1", "n2", "n3", "n4"}
    assert found["maint"].end - found["maint"].start == 36000
    assert found["maint"].flags[0] == "MAINT"
    assert query_limits.reservations_in(section("no reservation")) == ([], [])


def test_what_22_05_prints() -> None:
    (association,) = query_cluster.rows(section("22.05 assoc"), query_limits.ASSOCIATION)
    (qos,) = query_cluster.rows(section("22.05 qos"), query_limits.QOS)
    found = [*query_limits.limits_in("a", association, {}), *query_limits.limits_in("q", qos, {})]
    assert {(one.name, one.resource): one.amount for one in found} == {
        ("MaxTRES", "cpu"): 64,
        ("MaxTRESPerNode", "cpu"): 4,
        ("MaxJobs", "jobs"): 3,
        ("MaxWall", "wall"): 86400,
        ("MaxTRES", "mem"): 1500 * 1024,
        ("MaxTRES", "node"): 3,
        ("MinTRES", "cpu"): 1,
        ("MaxJobsPU", "jobs"): 2,
        ("MaxSubmitPU", "submitted"): 5,
    }
    (maint,), _ = query_limits.reservations_in(section("22.05 reservation"))
    assert (len(maint.nodes), maint.flags) == (4, ("MAINT", "SPEC_NODES", "ALL_NODES"))


@given(st.text(alphabet=st.sampled_from(list("|=,:-[]() \n\tabcNodesStartTime0129\u202e\x1b")), max_size=300))
def test_any_text_is_parsed(text: str) -> None:
    for columns in (query_limits.ASSOCIATION, query_limits.QOS):
        for row in query_cluster.rows(text, columns):
            list(query_limits.limits_in("x", row, {}))
    query_limits.reservations_in(text)
    query_limits.reservations_in(
        f"ReservationName={text} StartTime=2026-11-25T08:00:00 EndTime=2026-11-26 Nodes={text}"
    )
