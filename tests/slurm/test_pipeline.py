"""Pipelines on a cluster: stages follow each other with no client running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.faults import wait_until
from tests.slurm.user import User

pytestmark = pytest.mark.cluster


JOB = r"""
name: nightly
launcher: none
time: 5
cpus_per_node: 1
hang: false
retry: {max_attempts: 1}
progress: {step: 'step (\d+)/(\d+)', loss: 'loss (\S+)'}
jobs:
  prepare: {command: [sh, -c, 'echo prepared']}
  train:
    after: prepare
    command: [sh, -c, 'cd "$HPC_LAUNCH_RUN_DIR"; mkdir -p steps; echo x >steps/$0; echo "step 1/1 loss $0"']
    args: [9]
    checkpoint: {dir: "${run.dir}/steps", pattern: '(\d+)'}
    sweep: {grid: {args: [[2], [1]]}}
  evaluate:
    after: {train: ok}
    command: [sh, -c, 'echo "$0" >>"$HPC_LAUNCH_RUN_DIR/../evaluated"', "${train.best.checkpoint}"]
  watch:
    on: {checkpoint: train}
    command: [sh, -c, 'echo "$0" >>"$HPC_LAUNCH_RUN_DIR/../watched"', "${train.checkpoint}"]
  rescue: {after: {train: not-ok}, command: ["true"]}
"""


def test_stages_follow_each_other_with_no_client_running(user: User) -> None:
    answer = user.submit(JOB)
    folder = user.home / "runs" / answer["run"]
    wait_until(lambda: (folder / "evaluated").exists() and (folder / "watched").exists())
    best = f"{folder}/{folder.name}.train/{folder.name}.train.1/steps/1"
    assert (folder / "evaluated").read_text() == f"{best}\n"
    status = user.until(answer["run"], "COMPLETED")
    states = {one["stage"]: (one["state"], one["needed"]) for one in status["stages"]}
    assert states.pop("rescue") == ("CANCELLED", False)
    assert set(states.values()) == {("COMPLETED", True)}
    assert sorted((folder / "watched").read_text().splitlines()) == [best.replace("1/steps/1", "0/steps/2"), best]
    assert user.status(f"{answer['run']}/train/1")["run"] == f"{answer['run']}/train/1"


LAST = r"""
name: nightly
launcher: none
time: 5
cpus_per_node: 5
hang: false
retry: {max_attempts: 3, backoff: 1s}
progress: {step: 'step (\d+)/(\d+)', loss: 'loss (\S+)'}
jobs:
  train:
    command: [sh, -c, '[ $0 = 1 ] || [ -e "$HPC_LAUNCH_RUN_DIR/attempts/002" ] || sleep 600; echo "step 1/1 loss $0"']
    sweep: {grid: {args: [[1], [2]]}}
  evaluate: {after: train, command: [sh, -c, 'touch "$HPC_LAUNCH_RUN_DIR/../evaluated"']}
"""


@pytest.mark.prove
def test_it_goes_on_though_the_node_of_the_last_running_point_dies(user_in_trouble: User) -> None:
    user = user_in_trouble
    answer = user.submit(LAST)
    folder = Path(answer["folder"])
    first, last = (folder / f"{folder.name}.train" / f"{folder.name}.train.{number}" for number in range(2))
    wait_until(lambda: (first / "attempts/001/end.json").exists() and (last / "attempts/001/start.json").exists())
    user.cluster.kill_node(json.loads((last / "attempts/001/start.json").read_text())["nodes"])

    wait_until(lambda: (folder / "evaluated").exists(), explain=lambda: str(user.cluster.jobs()))
    status = user.until(answer["run"], "COMPLETED", "FAILED")
    assert {one["stage"]: one["state"] for one in status["stages"]} == {"train": "COMPLETED", "evaluate": "COMPLETED"}
    assert (last / "attempts" / "002").exists()
