"""What a profile does around a training, on a Slurm of four nodes: steps, scopes, linked options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.slurm.user import User

SITE = """
name: here
extends: testcluster
prelude:
  - {set: {FROM_PRELUDE: "a b"}}
  - {prepend: {PATH: /site/bin}}
  - {ulimit: {core: "0"}}
  - {mkdir: ["${run.dir}/once"]}
  - {mkdir: ["${run.dir}/on-${shell.SLURMD_NODENAME}"], where: nodes}
  - {copy: {source: "${run.dir}/job.yaml", to: "${run.dir}/copy-${shell.SLURMD_NODENAME}"}, where: nodes}
  - {raw: 'export RAW=$((1 + 1))'}
env:
  - {set: {JOB_SCOPE: site, BEATEN: site}}
  - {set: {NODE_SCOPE: "on ${shell.SLURMD_NODENAME}"}, scope: node}
  - {set: {RANK_SCOPE: "rank ${shell.RANK} local ${shell.LOCAL_RANK}", BEATEN: rank}, scope: rank}
  - {set: {MANY: 1}, when: {nodes: ">1"}}
  - {set: {ONE: 1}, when: {nodes: 1}}
rules:
  - given: {env: {MANY: "1"}}
    needs: {sbatch: {comment: linked}}
    add: true
sbatch: {drop: [open-mode]}
"""
JOB = """
name: scopes
site: here
nodes: 2
processes_per_node: 2
launcher: srun
time: 2m
env: {BEATEN: job}
command:
  - bash
  - -c
  - echo "$RANK|$FROM_PRELUDE|$${PATH%%:*}|$RAW|$JOB_SCOPE|$NODE_SCOPE|$RANK_SCOPE|$BEATEN|$MANY|$ONE|$(ulimit -c)"
"""


@pytest.mark.slow
def test_steps_and_variables_are_where_the_profile_puts_them(user: User) -> None:
    user.job(SITE, "config/hpc-launch/sites/here.yaml")
    lines = user.completed(user.job(JOB))
    first, second = user.nodes()
    for rank, node in enumerate([first, first, second, second]):
        mine = f"rank {rank} local {rank % 2}"
        assert f"{rank}|a b|/site/bin|2|site|on {node}|{mine}|job|1||0" in lines
    found = user.cluster.run(["find", str(user.home / "runs"), "-path", "*/once", "-o", "-path", "*on-n[1-4]"]).stdout
    found += user.cluster.run(["find", str(user.home / "runs"), "-path", "*copy-n[1-4]/job.yaml"]).stdout
    names = ("/once", *(name for node in (first, second) for name in (f"/on-{node}", f"/copy-{node}/job.yaml")))
    assert [name for name in names if f"{name}\n" not in found] == []


# --- Inside an image, in a real Apptainer: modules before it, files sourced there, and whose word is the last ---

INSIDE_SITE = """
name: here
extends: testcluster
prelude:
  - {source: "HOME/modules.sh"}
  - {source: "HOME/adapt.sh", where: container, when: {container: true}}
containers: {modules: [runtime/1]}
env:
  - {set: {FROM_INSIDE_SITE: site, KEPT: site}}
  - {set: {FROM_INSIDE_SITE: inner}, scope: container}
  - {set: {ONLY_INSIDE: "of rank ${shell.RANK}"}, scope: container}
  - {unset: [GONE], scope: container}
  - {set: {NODE_SCOPE: "${shell.SLURM_NODEID}"}, scope: node}
"""
INSIDE_JOB = """
name: inside
site: here
nodes: 2
launcher: srun
time: 2m
env: {MINE: job, GONE: job}
container:
  image: SIF
  binds: [HOME]
  modules: [runtime/2]
  prelude: [{source: HOME/inside.sh}, {prepend: {PATH: /data/bin}}]
command:
  - sh
  - -c
  - echo "$RANK|$FROM_INSIDE_SITE|$ONLY_INSIDE|$MINE|$KEPT|$NODE_SCOPE|$${GONE-gone}|$ADAPTED|$FROM_FILE|$PATH"
"""


@pytest.mark.slow
def test_a_file_sourced_inside_does_not_beat_the_job(cluster_sid: Cluster, user_dir: Path, sif: Path) -> None:
    """The module command is the site's, here a function that a file of it defines."""
    user = User(cluster_sid, user_dir)
    user.job('module() { [ "$1" = load ] && export LOADED=${LOADED:+$LOADED,}$2; }\n', "modules.sh")
    user.job('export FROM_FILE="$LOADED" MINE=file\n', "inside.sh")
    user.job("export ADAPTED=yes MINE=adapted FROM_INSIDE_SITE=adapted\n", "adapt.sh")
    user.job(INSIDE_SITE.replace("HOME", str(user.home)), "config/hpc-launch/sites/here.yaml")
    job = user.job(INSIDE_JOB.replace("SIF", str(sif)).replace("HOME", str(user.home)))
    log = user.completed(job)
    for rank in (0, 1):
        assert f"{rank}|inner|of rank {rank}|job|site|{rank}|job|yes|runtime/1,runtime/2|/data/bin:" in log
