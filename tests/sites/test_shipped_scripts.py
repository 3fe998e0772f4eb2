"""One unchanged job file on every shipped profile: what is asked of Slurm, and two golden scripts for each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_launch.script.render import render
from tests.golden.golden_text import golden_text
from tests.golden.test_options import PLUGINS, known_to, slurm_conf
from tests.shellcheck import shellcheck_own_parts
from tests.sites.shipped import GOLDEN, JOBS, SCRIPTS, SLURM, known_surroundings, plan_of

__all__ = ["known_surroundings", "slurm_conf"]

LEFT_OUT_OF_HELP = {"hint", "wait-all-nodes"}
"""Options of sbatch(1) that its help does not list; `test_options_left_out_of_help_are_known` asks the program."""


@pytest.mark.parametrize(("site", "job"), SCRIPTS)
def test_script_is_the_golden_one(site: str, job: str, request: pytest.FixtureRequest) -> None:
    script = golden_text(render(plan_of(site, *JOBS[job]))).encode()
    golden = GOLDEN / site / f"{job}.sh"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_bytes(script)
    assert script == golden.read_bytes()


def test_there_is_no_golden_script_of_a_profile_that_is_gone() -> None:
    there = {(path.parent.name, path.stem) for path in GOLDEN.glob("*/*.sh")}
    assert there == set(SCRIPTS)


@pytest.mark.slow
@pytest.mark.parametrize("site", SLURM)
def test_shellcheck_finds_nothing(site: str) -> None:
    assert shellcheck_own_parts((GOLDEN / site / f"{job}.sh").read_text() for job in JOBS) == ""


@pytest.fixture(scope="module")
def sbatch_options(slurm_conf: Path) -> set[str]:
    """All long options of sbatch."""
    return known_to("sbatch", slurm_conf)


@pytest.fixture(scope="module")
def srun_options(slurm_conf: Path) -> set[str]:
    """All long options of srun, and those of plug-ins that hpc-launch itself writes."""
    return known_to("srun", slurm_conf) | PLUGINS


@pytest.mark.parametrize(("site", "job"), SCRIPTS)
def test_slurm_knows_every_option(site: str, job: str, sbatch_options: set[str], srun_options: set[str]) -> None:
    text = (GOLDEN / site / f"{job}.sh").read_text("utf-8")
    directives = set(re.findall(r"^#SBATCH --([a-z0-9-]+)", text, re.MULTILINE))
    assert {"job-name", "time"} <= directives
    assert directives <= sbatch_options | LEFT_OUT_OF_HELP
    for options in _steps(text):
        assert options <= srun_options


@pytest.mark.parametrize(("name", "known"), [*((name, True) for name in sorted(LEFT_OUT_OF_HELP)), ("no-such", False)])
def test_options_left_out_of_help_are_known(name: str, known: bool, slurm_conf: Path) -> None:
    if shutil.which("sbatch") is None:
        pytest.skip("sbatch is not installed")
    environment = {"PATH": os.environ["PATH"], "SLURM_CONF": str(slurm_conf)}
    asked = subprocess.run(
        ["sbatch", f"--{name}=1", "--version"], capture_output=True, text=True, check=False, env=environment
    )
    assert ("unrecognized option" not in asked.stderr) == known


def _steps(text: str) -> Iterator[set[str]]:
    """The long options of each srun in a script, up to what it starts."""
    for line in text.replace("\\\n", " ").splitlines():
        if re.match(r" *(exec )?srun ", line):
            yield set(re.findall(r" --([a-z][a-z0-9-]*)", re.split(r" bash | python", line)[0]))
