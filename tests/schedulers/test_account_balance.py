"""The budget of an account, from what `scontrol show assoc_mgr` prints (captured from Slurm 22.05, shortened)."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from hpc_launch.schedulers.scheduler import Balance
from hpc_launch.schedulers.slurm.query_limits import balance, parse_balance

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
