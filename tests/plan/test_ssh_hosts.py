"""Jobs on hosts without a scheduler: which hosts they get, and how many processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import errors
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.runs.records.plan_record import plan_record
from hpc_launch.schedulers.job_files import hosts_of, spares_of
from hpc_launch.script.render import render
from hpc_launch.sites.load_layers import read_sources, resolve

SITE = {
    "name": "lab",
    "scheduler": {"type": "ssh", "hosts": {"a": 8, "b": {"slots": 8, "address": "10.0.0.2"}, "c": 4}},
    "node_classes": {"host": {"cpus": 64, "gpus": 8}},
    "queues": {"all": {"node_class": "host", "memory": "omit"}},
}


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HPC_LAUNCH_HOME", str(tmp_path / "runs"))


def plan(
    folder: Path, scheduler: dict[str, object] | None = None, avoid: Sequence[str] = (), **keys: object
) -> tuple[LaunchPlan | None, str]:
    """The plan and the findings as text."""
    site = {**SITE, "scheduler": {"type": "ssh", **scheduler}} if scheduler is not None else SITE
    (folder / "lab.yaml").write_text(yaml.safe_dump(site))
    job = {"name": "j", "site": "lab", "nodes": 3, "launcher": "torchrun", "script": "train.py", "time": "1:00:00"}
    (folder / "job.yaml").write_text(yaml.safe_dump({**job, **keys}))
    try:
        result, findings = build(resolve(read_sources(folder / "job.yaml"), avoid=avoid).resolved)
    except Refused as refused:
        result, findings = None, list(refused.findings)
    return result, "\n".join(map(str, errors(findings)))


def test_uneven_slots_add_up(tmp_path: Path) -> None:
    result, message = plan(tmp_path)
    assert result is not None, message
    assert (result.world_size, [host.slots for host in result.hosts]) == (20, [8, 8, 4])
    assert "#HOST c slots=4\n" in render(result)
    assert "3 nodes with 8 + 8 + 4 processes" in render(result)
    assert (plan_record(result).slots, result.shape) == ((8, 8, 4), "with 8 + 8 + 4 processes")


def test_a_job_may_use_fewer_slots_and_other_hosts(tmp_path: Path) -> None:
    result, message = plan(tmp_path, nodes=2, exclude=["a"], gpus_per_node=4)
    assert result is not None, message
    assert [(host.name, host.slots) for host in result.hosts] == [("b", 4), ("c", 4)]
    assert result.world_size == 8
    assert "MASTER_ADDR=10.0.0.2" in render(result)


def test_a_host_file_is_relative_to_the_job_and_filtered(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("x slots=8\ny slots=8\nz slots=2\n")
    scheduler: dict[str, object] = {"hostfile": "hosts.txt", "exclude": "y:0,1@z", "hosts": {"y": {"interface": "ib0"}}}
    result, message = plan(tmp_path, scheduler, nodes=2)
    assert result is not None, message
    assert [(host.name, host.slots, host.interface) for host in result.hosts] == [("x", 8, ""), ("y", 6, "ib0")]
    script = render(result)
    assert "job_devices=('' '2,3,4,5,6,7')" in script
    assert "job_interfaces=('' ib0)" in script


@pytest.mark.parametrize(
    ("avoid", "nodes", "spares"), [([], ["a"], ["b", "c"]), (["a"], ["b"], ["c"]), (["a", "b"], ["c"], [])]
)
def test_a_following_attempt_takes_a_spare_and_may_have_fewer(
    tmp_path: Path, avoid: list[str], nodes: list[str], spares: list[str]
) -> None:
    result, message = plan(tmp_path, avoid=avoid, nodes=1, spares=2)
    assert result is not None, message
    assert ([host.name for host in result.hosts], [host.name for host in result.spare_hosts]) == (nodes, spares)
    script = render(result)
    assert (list(hosts_of(script)[0]), list(spares_of(script))) == (nodes, spares)
    assert f"job_spares=2 job_spare_hosts=({' '.join(spares)})" in script


@pytest.mark.parametrize(
    ("scheduler", "keys", "message"),
    [
        (None, {"nodes": 4}, "4 nodes requested, but site lab has 3 hosts"),
        (None, {"nodes": 3, "exclude": ["b"]}, "of which 1 are excluded"),
        (None, {"spares": 1}, "3 nodes and 1 spare requested, but site lab has 3 hosts"),
        (None, {"avoid": ["b"], "spares": 1}, "of which 1 are excluded"),
        ({"hosts": {"a": 8, "b": 8}, "shared": True}, {"nodes": 1, "spares": 1}, "HL490 spares are leased"),
        ({"hosts": {"a": 8, "b": 8}, "shared_folders": False}, {"nodes": 1, "spares": 1}, "HL490 spares need folders"),
        (None, {"gpus_per_node": 8}, "c has 4 slots"),
        (None, {"nodes": "2..3"}, "starts nodes with ssh, which ends all nodes"),
        ({}, {}, "names no hosts"),
        ({"hostfile": "missing"}, {}, "cannot read the host file"),
        ({"hostfile": "bad"}, {}, "bad:1: HL660 '-oProxyCommand=x' is an option of ssh"),
        ({"hosts": {"a": 8}, "include": "d"}, {}, "'d', which is not one of the hosts"),
        ({"hosts": {"-oProxyCommand=x": 8}}, {}, "-oProxyCommand=x"),
    ],
)
def test_what_cannot_run_is_refused(
    tmp_path: Path, scheduler: dict[str, object] | None, keys: dict[str, Any], message: str
) -> None:
    (tmp_path / "bad").write_text("-oProxyCommand=x slots=8\n")
    result, found = plan(tmp_path, scheduler, **keys)
    assert message in found, (result, found)
