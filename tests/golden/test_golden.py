"""The whole script for each branch of the templates, against its golden file, and against ShellCheck."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpc_launch.base.findings import errors
from hpc_launch.base.installed import shipped
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.script.render import render, render_array
from hpc_launch.sites import this_machine
from hpc_launch.sites.load_layers import load
from hpc_launch.sites.resolved import Logins
from tests.golden.golden_text import golden_text
from tests.shellcheck import shellcheck, shellcheck_own_parts

HERE = Path(__file__).parent
CASES = sorted(path.stem for path in (HERE / "cases").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _known_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A golden script must not show the machine that it was made on."""
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(HERE / "sites"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HPC_LAUNCH_HOME", "/home/alice/runs")
    devices = {"/dev/nvidia[0-9]*": [f"/dev/nvidia{number}" for number in range(4)]}
    monkeypatch.setattr(this_machine, "glob", SimpleNamespace(glob=lambda pattern: devices.get(pattern, [])))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    logins = Logins("/home/alice/.netrc", frozenset({"api.wandb.ai"}))
    monkeypatch.setattr(this_machine, "logins", lambda _: logins)


def plan_of(case: str) -> LaunchPlan:
    loaded = load(HERE / "cases" / f"{case}.yaml", job_folder="/home/alice/project")
    plan, findings = build(loaded.resolved)
    assert not errors(findings), [str(finding) for finding in findings]
    assert plan is not None
    return plan


@pytest.mark.parametrize("case", CASES)
def test_script_is_the_golden_one(case: str, request: pytest.FixtureRequest) -> None:
    script = golden_text(render(plan_of(case)))
    golden = HERE / "expected" / f"{case}.sh"
    if request.config.getoption("--update-golden"):
        golden.write_bytes(script.encode())
    assert script.encode() == golden.read_bytes()


def test_the_script_of_a_job_array(request: pytest.FixtureRequest) -> None:
    case = next(case for case in CASES if plan_of(case).directives)
    script, golden = render_array(plan_of(case)), HERE / "arrays" / "array.sh"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(script)
    assert script == golden.read_text()
    assert shellcheck([golden]) == ""


@pytest.mark.slow
def test_shellcheck_finds_nothing_in_any_golden_script() -> None:
    scripts = sorted((HERE / "expected").glob("*.sh"))
    assert {path.stem for path in scripts} == set(CASES)
    roles = [golden_text(render(role.plan)) for case in CASES for role in plan_of(case).roles]
    assert roles
    assert shellcheck_own_parts([*(path.read_text() for path in scripts), *roles]) == ""


def test_golden_scripts_cover_every_branch_of_the_templates() -> None:
    """Each line of each template that reaches a script as it stands is in one of the golden scripts."""
    golden = [path for name in ("expected", "by_hand", "interactive", "arrays") for path in (HERE / name).glob("*.sh")]
    everything = "\n".join(path.read_text() for path in sorted(golden))
    missing = []
    for template in sorted(shipped("slurm_templates").rglob("*.j2")):
        for line in template.read_text().splitlines():
            fixed = line.strip()
            if fixed and not any(mark in fixed for mark in ("{%", "{{", "<#")) and fixed not in everything:
                missing.append(f"{template.name}: {fixed}")
    assert not missing
