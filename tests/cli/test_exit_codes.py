"""The exit code of each verb for each kind of error, as `docs/reference/verbs.md` has them.

Code 5 is in test_bad_input.py, 130 in test_logs.py and test_watch.py, the rest of 1 in test_why.py and
test_for_agents.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import click
import pytest

from hpc_launch.cli.main import group
from hpc_launch.cli.shared_options import complete_run
from tests.cli.test_json import JOB, leaves
from tests.view.home import Home

SLURM = (
    "name: cluster\nscheduler: slurm\nnode_classes: {n: {cpus: 2}}\n"
    "queues: {all: {node_class: n, partition: all, memory: omit, default_time: 1h}}\n"
)
WORDS = {
    "nodes clear": ["n1"],
    "config hostfile": ["--job", "job.yaml"],
    "config launcher": ["--job", "job.yaml"],
    "containers build": ["cpu"],
    "containers pull": ["name"],
    "containers check": ["job.yaml"],
    "shell": ["job.yaml"],
    "init": ["train.py", "--yes", "--set", "nodes=1", "-o", "new.yaml"],
}
"""The arguments of verbs whose argument is not a job file."""


def _verbs_with(parameter: str) -> Iterator[tuple[str, list[str]]]:
    """The verbs with a parameter, each with arguments that are good."""
    for name, verb in leaves(group):
        names = {param.name for param in verb.params}
        if parameter in names:
            yield name, WORDS.get(name, ["job.yaml"] if {"job", "jobs"} & names else [])


@pytest.fixture
def folder(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.chdir(home.path)
    (home.path / "job.yaml").write_text(JOB)
    (home.path / "bad.yaml").write_text(JOB + "node: 2\n")
    (home.path / "fail.yaml").write_text(JOB.replace("[echo, 'step 1/1 loss 0.5']", "[sh, -c, 'exit 3']"))
    (home.path / "slurm.yaml").write_text(JOB.replace("local", "cluster"))
    (home.path / "cluster.yaml").write_text(SLURM)
    (home.path / "train.py").write_text("print('step 1')\n")
    home.environment["HPC_LAUNCH_SITE_PATH"] = str(home.path)
    return home


def test_2_for_an_unknown_run(folder: Home) -> None:
    takes_run = [
        name
        for name, verb in leaves(group)
        for param in verb.params
        if isinstance(param, click.Argument) and param._custom_shell_complete is complete_run
    ]
    assert {"status", "logs", "why", "report", "watch", "cancel", "resubmit"} <= set(takes_run)
    for name in takes_run:
        assert "no run is called" in folder.call(name, "nothing", code=2).stderr
    folder.call("plan", "job.yaml", "--pace-of", "nothing", code=2)


def test_3_for_a_bad_job_file_or_site(folder: Home) -> None:
    jobs = dict(chain(_verbs_with("job"), _verbs_with("jobs"), [("containers check", ["job.yaml"])]))
    assert {"submit", "run", "validate", "plan", "doctor", "drill", "render", "explain"} <= set(jobs)
    for name, words in jobs.items():
        bad = ["bad.yaml" if word == "job.yaml" else word for word in words]
        done = folder.call(*name.split(), *bad, code=3)
        assert "HL010" in done.stdout + done.stderr
    sites = dict(_verbs_with("site"))
    del sites["clusters add"]  # only the cluster knows which profiles it has
    assert set(jobs) < set(sites)
    for name, words in sites.items():
        done = folder.call(*name.split(), *words, "--site", "nowhere", code=3)
        assert "HL301" in done.stdout + done.stderr
    for name in ("show", "check", "diff local"):
        folder.call("sites", *name.split(), "nowhere", code=3)


def test_4_for_a_scheduler_that_does_not_answer(folder: Home) -> None:
    folder.environment["PATH"] = str(folder.path)
    for words in (
        "submit slurm.yaml",
        "submit slurm.yaml --test-only",
        "shell slurm.yaml",
        "sites learn",
        "sites check --live cluster",
    ):
        folder.call(*words.split(), code=4)


def test_1_for_a_run_that_failed_if_it_was_followed_or_asked_for(folder: Home) -> None:
    folder.call("run", "fail.yaml", code=1)
    for verb, code in {"watch": 1, "why": 1, "status": 0, "logs": 0, "cancel": 0}.items():
        folder.call(verb, "@last", code=code)


def test_2_for_output_that_cannot_be_written(folder: Home) -> None:
    for words in ("render job.yaml", "config hostfile --hosts n1", "config slurm --script train.py"):
        assert "cannot write /proc/x" in folder.call(*words.split(), "-o", "/proc/x", code=2).stderr
