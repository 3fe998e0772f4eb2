"""Trainings inside a real Apptainer on hosts that are reached by ssh."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.requirements import REPOSITORY
from tests.cluster.ssh import connect_nodes
from tests.slurm.user import SMALL
from tests.ssh.ssh_user import SshUser

pytestmark = [pytest.mark.prove, pytest.mark.torch]
EXAMPLE = REPOSITORY / "examples" / "tiny-gpt" / "job.yaml"


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_the_example_trains_in_an_image(cluster_sid: Cluster, user_dir: Path, sif: Path, launcher: str) -> None:
    connect_nodes(cluster_sid)
    user = SshUser(cluster_sid, user_dir)
    user.profile("hosts: {n1: 2, n2: 1}")
    sets = {"container.image": str(sif), "container.runtime": "apptainer", "container.binds": json.dumps(user.binds)}
    sets |= {"launcher": launcher, "nodes": "2", "processes_per_node": "null", "args.steps": "4"}
    sets |= {"retry.max_attempts": "1"}
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    done = user.launch("submit", str(EXAMPLE), "--wait", *words, *SMALL)
    log = user.launch("logs", "@last").stdout
    assert done.returncode == 0, done.stdout + done.stderr + log
    assert set(re.findall(r"rank (\d) of 3 on host (n\d)", log)) == {("0", "n1"), ("1", "n1"), ("2", "n2")}
    (script,) = user.home.glob("runs/*/attempts/001/script.sh")
    assert "apptainer exec" in script.read_text()
    user.nothing_left()
