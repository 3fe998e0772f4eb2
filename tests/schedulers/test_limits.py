"""Limits, reservations and budgets: as sacctmgr and scontrol print them, and of a job, from stand-ins for both."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.schedulers.scheduler import Balance, Limit
from hpc_launch.schedulers.slurm import query_cluster, query_limits
from hpc_launch.schedulers.slurm.query_limits import balance, parse_balance

CAPTURED = (Path(__file__).parent / "captured" / "limits.txt").read_text()


def section(name: str) -> str:
    return CAPTURED.split(f"==> {name} <==\n")[1].split("==> ")[0]


def test_the_association_of_each_cluster_and_partition() -> None:
    rows = query_cluster.rows(section("sacctmgr assoc"), query_cluster.ASSOCIATION)
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
    rows = {row["name"]: row for row in query_cluster.rows(section("sacctmgr qos"), query_cluster.QOS)}
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
    (association,) = query_cluster.rows(section("22.05 assoc"), query_cluster.ASSOCIATION)
    (qos,) = query_cluster.rows(section("22.05 qos"), query_cluster.QOS)
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
    for columns in (query_cluster.ASSOCIATION, query_cluster.QOS):
        for row in query_cluster.rows(text, columns):
            list(query_limits.limits_in("x", row, {}))
    query_limits.reservations_in(text)
    query_limits.reservations_in(
        f"ReservationName={text} StartTime=2026-11-25T08:00:00 EndTime=2026-11-26 Nodes={text}"
    )


# --- The limits of a job, from stand-ins that print what Slurm's commands print ---

CONFIG = "ClusterName = testcluster\nAccountingStorageType = accounting_storage/slurmdbd\n"
PARTITIONS = (
    "PartitionName=gpu Default=YES MaxTime=2-00:00:00 MaxNodes=UNLIMITED MinNodes=0 QoS=N/A State=UP\n"
    "PartitionName=debug Default=NO MaxTime=01:00:00 MaxNodes=2 QoS=normal State=UP\n"
)
JOBS = "RUNNING|ml|gpu-long\nRUNNING|ml|normal\nPENDING|ml|gpu-long\nnonsense\n"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins; each prints the first file whose name is a word of its command line."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script = (
        f'#!/bin/bash\nfor word; do [ -f "{tmp_path}/$word.out" ] && exec cat "{tmp_path}/$word.out"; done\nexit 1\n'
    )
    for name in ("scontrol", "sacctmgr", "squeue"):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    associations = section("sacctmgr assoc").replace("alice", getpass.getuser())
    enforced = f"{CONFIG}AccountingStorageEnforce = associations,limits,qos\n"
    for name, text in {
        "config": enforced,
        "partition": PARTITIONS,
        "assoc": associations,
        "user": "ml\n",
        "qos": section("sacctmgr qos"),
        "--me": JOBS,
    }.items():
        (tmp_path / f"{name}.out").write_text(text)
    return tmp_path


def named(account: str | None, partition: str | None, qos: str | None) -> dict[tuple[str, str], tuple[str, int]]:
    found = query_limits.limits(account, partition, qos)
    assert not found.problems
    return {(one.name, one.resource): (one.owner, one.amount) for one in found.limits}


@pytest.mark.usefixtures("commands")
def test_the_qos_comes_before_the_account() -> None:
    found = named("ml", None, "gpu-long")
    assert found["MaxTRES", "node"] == ("QOS gpu-long", 8)
    assert found["MaxTRES", "cpu"] == ("account ml", 256)
    assert found["MaxWall", "wall"] == ("QOS gpu-long", 7 * 86400)
    assert found["MaxJobsPU", "jobs"] == ("QOS gpu-long", 3)
    assert ("MaxJobs", "jobs") not in found
    assert ("MaxTime", "wall") not in found  # a flag of the QOS lifts it


@pytest.mark.usefixtures("commands")
def test_the_default_account_and_qos_and_the_association_of_the_partition() -> None:
    found = named(None, "debug", None)
    assert found["MaxTRES", "node"] == ("account ml", 2)
    assert found["MaxTime", "wall"] == ("partition debug", 3600)
    limits = query_limits.limits(None, "debug", None)
    assert limits.not_checked == ("how much of the budget of account ml is used (GrpTRESMins=gres/gpu=100000)",)
    assert {one.resource: one.used for one in limits.limits if one.used is not None} == {"jobs": 2, "submitted": 3}


@pytest.mark.usefixtures("commands")
def test_an_account_of_others_is_a_problem() -> None:
    found = query_limits.limits("other", None, None)
    assert f"user {getpass.getuser()} cannot use account other; accounts: ml" in found.problems


def test_a_database_that_does_not_answer_leaves_the_partition(commands: Path) -> None:
    (commands / "assoc.out").unlink()
    found = query_limits.limits("ml", "debug", None)
    assert [one.owner for one in found.limits] == ["partition debug", "partition debug"]
    assert found.not_checked[0].startswith("account and QOS: sacctmgr: ")


def test_associations_in_an_unknown_form_are_not_checked(commands: Path) -> None:
    (commands / "assoc.out").write_text("testcluster|ml\n")
    assert query_limits.limits("ml", None, None).not_checked == (
        "account and QOS: sacctmgr printed associations in an unknown form",
    )


def test_associations_with_another_cluster_are_not_learned(commands: Path) -> None:
    file = commands / "assoc.out"
    file.write_text(f"{file.read_text()}{file.read_text().replace('testcluster|ml|', 'elsewhere|bio|')}")
    (commands / "node.out").write_text("")
    accounting = query_cluster.survey(getpass.getuser()).accounting
    assert accounting is not None
    assert accounting.accounts == ("ml",)


def test_limits_that_slurm_does_not_enforce(commands: Path) -> None:
    (commands / "config.out").write_text(f"{CONFIG}AccountingStorageEnforce = associations\n")
    found = query_limits.limits("ml", None, None)
    assert "Slurm enforces no limits of accounts and QOS (AccountingStorageEnforce=associations)" in found.notes


def test_no_partition_and_an_unknown_qos_are_not_checked(commands: Path) -> None:
    (commands / "partition.out").write_text("")
    found = query_limits.limits("ml", "gone", "gone")
    assert found.not_checked == ("partition gone: scontrol does not list it", "QOS gone: sacctmgr does not list it")


# --- The budget of an account (captured from Slurm 22.05, shortened) ---

USED = "cpu=100000(70),mem=N(0),energy=N(0),node=N(0),billing=N(0),gres/gpu=6000(1230)"
FREE = "cpu=N(7),mem=N(0),energy=N(0),node=N(0),billing=N(0),gres/gpu=N(1230)"


def record(account: str, user: str, minutes: str, *, default: str = "No") -> str:
    return (
        f"ClusterName=testcluster Account={account} UserName={user} Partition= Priority=0 ParentAccount=root(1) "
        f"Lft=2 DefAssoc={default} GrpJobs=N(0) GrpWall=N(0.00) GrpTRESMins={minutes} GrpTRESRunMins=cpu=N(0)\n"
    )


def output(*records: str) -> str:
    return "Current Association Manager state\nAssociation Records\n" + "".join(records)


def test_the_shared_budget_in_hours() -> None:
    text = output(
        record("root", "", FREE), record("proj", "", USED), record("proj", "alice(4242)", FREE, default="Yes")
    )
    assert parse_balance("proj", text) == Balance("proj", "gres/gpu", 100, 20.5)


def test_without_a_limit_the_balance_is_unknown() -> None:
    assert parse_balance("proj", output(record("proj", "", FREE))) is None
    assert parse_balance("proj", "") is None
    assert parse_balance("proj", output(record("other", "", USED))) is None


def test_the_default_account_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = output(record("proj", "", USED), record("proj", f"{getpass.getuser()}(1)", FREE, default="Yes"))
    (tmp_path / "answer").write_text(text)
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/asked"\ncat "{tmp_path}/answer"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert balance(None) == Balance("proj", "gres/gpu", 100, 20.5)
    assert (tmp_path / "asked").read_text().split()[-1] == "accounts=proj"
    assert balance("$(reboot)") is None
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    assert balance("proj") is None
