"""The shipped profiles as the tests see them: the one job file planned and rendered on each, with a user's overlay."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from hpc_launch.base.findings import Finding, errors
from hpc_launch.base.installed import shipped
from hpc_launch.job.yaml_source import read_document
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.sites import this_machine
from hpc_launch.sites.load_layers import load

GOLDEN = Path(__file__).parents[1] / "golden" / "shipped"
JOBS = {"torchrun": ("launcher=torchrun",), "container": ("container=pytorch",)}
"""What is set for each golden script over the one job file. What `pytorch` is, a site's images say, or user.yaml."""
FILES = sorted(shipped("site_configs").rglob("*.yaml"))


def _names() -> list[str]:
    """Profiles that a job can run on: systems and templates."""
    documents = ((path, read_document(path)[0]) for path in FILES)
    return [path.stem for path, document in documents if document is None or document.data.get("kind") != "base"]


NAMES = _names()
SLURM = [name for name in NAMES if name != "local"]
SCRIPTS = [(name, job) for name in SLURM for job in JOBS]


@pytest.fixture(autouse=True)
def known_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine and its user: the same bytes everywhere."""
    for name in list(os.environ):
        if name not in ("PATH", "LANG", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER"):
            monkeypatch.delenv(name)
    for name, value in {"HOME": "/home/alice", "USER": "alice", "HPC_LAUNCH_HOME": "/home/alice/runs"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(GOLDEN))
    monkeypatch.setattr(this_machine, "logins", lambda _: None)


def planned(site: str, *sets: str) -> tuple[LaunchPlan | None, list[Finding]]:
    """The one job file on a site, and all that is found wrong with it."""
    return _planned(os.environ["XDG_CONFIG_HOME"], site, sets)


@cache
def _planned(_user: str, site: str, sets: tuple[str, ...]) -> tuple[LaunchPlan | None, list[Finding]]:
    """The same in all tests that have the same user's overlay."""
    loaded = load(GOLDEN / "job.yaml", site=site, sets=sets, job_folder="/home/alice/project")
    plan, findings = build(loaded.resolved)
    return plan, list(findings)


def plan_of(site: str, *sets: str) -> LaunchPlan:
    """The same where nothing may be wrong."""
    plan, findings = planned(site, *sets)
    assert not errors(findings), [str(finding) for finding in findings]
    assert plan is not None
    return plan
