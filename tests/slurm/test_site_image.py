"""What a profile does inside an image, in a real Apptainer: files sourced there, and whose word is the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.slurm.user import User

SITE = """
name: here
extends: testcluster
prelude:
  - {source: "HOME/adapt.sh", where: container, when: {container: true}}
env:
  - {set: {FROM_SITE: site, KEPT: site}}
  - {set: {FROM_SITE: inner}, scope: container}
  - {set: {ONLY_INSIDE: "of rank ${shell.RANK}"}, scope: container}
  - {unset: [GONE], scope: container}
  - {set: {NODE_SCOPE: "${shell.SLURM_NODEID}"}, scope: node}
"""
JOB = """
name: inside
site: here
nodes: 2
launcher: srun
time: 2m
env: {MINE: job, GONE: job}
container: {image: SIF, binds: [HOME]}
command: [sh, -c, 'echo "$RANK|$FROM_SITE|$ONLY_INSIDE|$MINE|$KEPT|$NODE_SCOPE|$${GONE-gone}|$ADAPTED"']
"""


@pytest.mark.slow
def test_a_file_sourced_inside_does_not_beat_the_job(cluster_sid: Cluster, user_dir: Path, sif: Path) -> None:
    user = User(cluster_sid, user_dir)
    user.job("export ADAPTED=yes MINE=adapted FROM_SITE=adapted\n", "adapt.sh")
    user.job(SITE.replace("HOME", str(user.home)), "config/hpc-launch/sites/here.yaml")
    job = user.job(JOB.replace("SIF", str(sif)).replace("HOME", str(user.home)))
    done = user.launch("submit", job, "--wait")
    log = user.launch("logs", "@last").stdout
    assert done.returncode == 0, done.stdout + done.stderr + log
    for rank in (0, 1):
        assert f"{rank}|inner|of rank {rank}|job|site|{rank}|job|yes" in log
