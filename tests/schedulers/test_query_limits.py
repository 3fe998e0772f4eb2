"""The limits of a job, from stand-ins that print what Slurm's commands print."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from hpc_launch.schedulers.slurm import query_limits
from tests.schedulers.test_parse_limits import section

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


def test_limits_that_slurm_does_not_enforce(commands: Path) -> None:
    (commands / "config.out").write_text(f"{CONFIG}AccountingStorageEnforce = associations\n")
    found = query_limits.limits("ml", None, None)
    assert "Slurm enforces no limits of accounts and QOS (AccountingStorageEnforce=associations)" in found.notes


def test_no_partition_and_an_unknown_qos_are_not_checked(commands: Path) -> None:
    (commands / "partition.out").write_text("")
    found = query_limits.limits("ml", "gone", "gone")
    assert found.not_checked == ("partition gone: scontrol does not list it", "QOS gone: sacctmgr does not list it")
