"""Hosts that no scheduler chooses: those that node health excludes are left out at the submission."""

from __future__ import annotations

import json
import time
from pathlib import Path

from hpc_launch.diagnose.node_health import NodeReport
from hpc_launch.runs.node_health_store import NodeHealthStore
from hpc_launch.schedulers.job_files import hosts_of
from tests.here import launch

PROFILE = {
    "name": "lab",
    "title": "Hosts",
    "scheduler": {"type": "ssh", "hosts": {"gpu1": 1, "gpu2": 1, "gpu3": 1}},
    "node_classes": {"host": {"cpus": 8, "gpus": 0}},
    "queues": {"all": {"node_class": "host", "memory": "omit"}},
}


def test_a_reported_host_is_not_used_while_there_are_others(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(json.dumps({**PROFILE, "paths": {"ledger": str(tmp_path / "ledger")}}))
    (tmp_path / "ledger").mkdir()

    def submit(nodes: int) -> tuple[tuple[str, ...], str]:
        keys = {"name": "job", "nodes": nodes, "launcher": "srun", "command": "true"}
        (tmp_path / "job.yaml").write_text(json.dumps(keys))
        done = launch(tmp_path, "submit", "job.yaml", "--site", str(tmp_path / "lab.yaml"), "--dry-run")
        assert done.returncode == 0, done.stderr
        return hosts_of(done.stdout)[0], done.stderr

    assert submit(2)[0] == ("gpu1", "gpu2")
    report = NodeReport(time=time.time(), node="gpu1", run="r", attempt=1, failure_class="gpu_hardware")
    NodeHealthStore("lab", str(tmp_path / "ledger")).write([report])
    hosts, said = submit(2)
    assert hosts == ("gpu2", "gpu3")
    assert "not using gpu1: `hpc-launch nodes list` shows why" in said
    assert submit(3)[0] == ("gpu1", "gpu2", "gpu3"), "it is needed"
