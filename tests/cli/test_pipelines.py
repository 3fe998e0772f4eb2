"""Pipelines from the command line, with real jobs on this machine."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.faults import wait_until
from tests.view.home import Home

JOB = r"""
name: nightly
site: local
launcher: none
time: 5
hang: false
retry: {max_attempts: 1}
progress: {step: 'step (\d+)/(\d+)', loss: 'loss (\S+)'}
jobs:
  prepare: {command: [sh, -c, 'test -e GO']}
  train:
    after: prepare
    command: [sh, -c, 'cd "$HPC_LAUNCH_RUN_DIR"; mkdir steps; echo x >steps/7; echo "step 1/1 loss $0"']
    checkpoint: {dir: "${run.dir}/steps", pattern: '(\d+)'}
    sweep: {grid: {args: [[2], [1]]}, limit: 2}
  score: {each: train, command: [echo, "got", "${train.step}", "${train.folder}"]}
  rescue: {after: {prepare: not-ok}, command: ["true"]}
  last: {after: {score: any}, command: ["true"]}
"""


def submit(home: Home, text: str = JOB) -> str:
    path = home.path / "nightly.yaml"
    path.write_text(text.replace("GO", str(home.path / "go")))
    return str(home.json("submit", str(path))["run"])


def states(home: Home, name: str) -> dict[str, str]:
    return {one["stage"]: one["state"] for one in home.json("status", name)["stages"]}


def test_a_stage_that_failed_starts_again_and_then_what_comes_after(home: Home) -> None:
    name = submit(home)
    home.call("watch", name, code=1)
    assert states(home, name) == {
        "prepare": "FAILED", "train": "CANCELLED", "score": "CANCELLED", "rescue": "COMPLETED", "last": "COMPLETED",
    }  # fmt: skip
    assert "prepare is FAILED" in home.call("status", name).stdout
    (home.path / "go").touch()
    home.call("resubmit", f"{name}/prepare")
    home.call("watch", name)
    assert set(states(home, name).values()) == {"COMPLETED"}
    folder = home.runs / name
    assert f"got 7 {folder}/{name}.train/{name}.train.1" in home.call("logs", f"{name}/score-1").stdout
    assert home.json("status", f"{name}/train/args=[1]")["run"] == f"{name}/train/1"
    assert [one["state"] for one in home.json("list")] == ["COMPLETED"]


def test_a_cancelled_pipeline_starts_nothing_until_it_is_resubmitted(home: Home) -> None:
    (home.path / "go").touch()
    name = submit(home, JOB.replace("test -e", "sleep 30; test -e"))
    home.call("cancel", f"{name}/score")
    assert states(home, name)["score"] == "CANCELLED"
    home.call("cancel", name)
    home.call("watch", name, code=1)
    ended = states(home, name)
    assert ended.pop("last") in ("COMPLETED", "CANCELLED")  # it was due as soon as `score` was over, however that ended
    assert set(ended.values()) == {"CANCELLED"}
    assert not Path(home.runs / name / f"{name}.train").exists()
    home.call("resubmit", name)
    assert states(home, name)["prepare"] not in ("CANCELLED", "FAILED")
    home.call("cancel", name)


def test_a_cancelled_pipeline_starts_again_only_when_its_jobs_have_ended(home: Home) -> None:
    stages = "one: {command: [sh, -c, 'trap : TERM; touch GO; sleep 100 & wait; sleep 5; exit 1']}"
    name = submit(home, JOB.partition("jobs:")[0] + f"jobs:\n  {stages}\n  two: {{after: one, command: ['true']}}\n")
    wait_until(lambda: (home.path / "go").exists())
    home.call("cancel", name)
    assert f"{name}/one is not over" in home.call("resubmit", name, code=2).stderr
    home.call("watch", name, code=1)
    assert "do not apply to stages that have not begun: two" in home.call("resubmit", name, "--set=env.A=1").stderr
    home.call("cancel", name)
