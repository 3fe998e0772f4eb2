"""Each cell of docs/evidence/launch-table.md: refused as the table says, or its script has what this launch needs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from docs.generate_launch_table import PAGE, page
from hpc_launch.base.findings import errors
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.runtimes.container_runtimes import wrap_command
from hpc_launch.script.render import render
from hpc_launch.sites.load_layers import load
from tests.cluster.requirements import REPOSITORY
from tests.shellcheck import shellcheck_own_parts
from tests.table.cells import LAUNCHERS, RUN, RUNTIMES, Cell, cells
from tests.table.options import OPTIONS

EVERY = list(cells())
LAUNCHED = [cell for cell in EVERY if cell.refused is None]

COMMANDS: dict[str, tuple[str, ...]] = {
    "torchrun, static": ("-m torch.distributed.run", "--node-rank=$node", "--rdzv-backend=static"),
    "torchrun, c10d": ("-m torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d"),
    "ft_launcher": ("-m nvidia_resiliency_ext.fault_tolerance.launcher", "--nnodes=2", "--rdzv-backend=c10d"),
    "deepspeed, no ssh": ("-m deepspeed.launcher.runner", "--no_ssh", "--node_rank=$node"),
    "deepspeed, pdsh": ("-m deepspeed.launcher.runner", "--launcher=pdsh"),
    "srun": ("export RANK=$SLURM_PROCID", "--ntasks=8"),
    "none": ("on_first_node() {", " step_once "),
}
"""Beside these no other launcher stands in a script; quotes are left out."""

NODES = {"torchrun, static", "torchrun, c10d", "ft_launcher", "deepspeed, no ssh"}
"""Launchers that srun starts once a node."""

GPU: dict[str, dict[str, list[str]]] = {
    "apptainer": {"nvidia": ["--nv"], "amd": ["--rocm"]},
    "singularity": {"nvidia": ["--nv"], "amd": ["--rocm"]},
    "podman-hpc": {"nvidia": ["--gpu"], "amd": ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups"]},
}
"""The words by which a runtime lets GPUs in; the others have none, or leave it to the site and to `options`."""

GPU_WORDS = {word for by_vendor in GPU.values() for words in by_vendor.values() for word in words}


@pytest.fixture(autouse=True)
def _known_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(Path(__file__).parent / "sites"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp()))
    monkeypatch.setenv("HPC_LAUNCH_HOME", "/home/alice/runs")


@cache
def planned(cell: Cell, folder: Path) -> tuple[LaunchPlan | None, list[str]]:
    """The plan, and the codes of the faults."""
    file = folder / "cell.yaml"
    file.write_text(json.dumps(cell.job))
    plan, findings = build(load(file, job_folder="/home/alice/project").resolved)
    return plan, [finding.code for finding in errors(findings)]


@cache
def script(cell: Cell, folder: Path) -> str:
    plan, codes = planned(cell, folder)
    assert plan is not None
    assert codes == []
    return render(plan)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all cells, so that what was rendered once is there for the next test."""
    path = tmp_path_factory.getbasetemp() / "cells"
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize(
    "cell",
    # `make check` looks at every fifth: a number that divides none of the table's sides meets all of them.
    [
        pytest.param(cell, id=str(cell), marks=[pytest.mark.slow] if number % 5 else [])
        for number, cell in enumerate(EVERY)
    ],
)
def test_a_cell_is_what_the_table_says(cell: Cell, folder: Path) -> None:
    if cell.refused is not None:
        assert planned(cell, folder)[1] == [cell.refused[0]]
        assert cell.run is None
        return
    text = script(cell, folder)
    bare = text.replace('"', "")
    for words in COMMANDS[cell.launcher]:
        assert words in bare
    for launcher, others in COMMANDS.items():
        assert launcher == cell.launcher or not all(words in bare for words in others)
    gpus = 0 if cell.vendor == "none" else 4
    assert re.findall(r"^#SBATCH --gpus-per-node=(\S+)", text, re.MULTILINE) == ([str(gpus)] if gpus else [])
    _has_its_strategy(cell, text)
    if cell.launcher in NODES:
        assert "--ntasks-per-node=1" in bare
    if cell.runtime != "none":
        _is_inside(cell, text, folder)


def _has_its_strategy(cell: Cell, text: str) -> None:
    named = re.findall(r"^ *export HPC_LAUNCH_STRATEGY=(\S+)", text, re.MULTILINE)
    assert named == ([cell.strategy] if cell.strategy != "none" else [])
    stages = re.findall(r'^    "stage": (\d),?$', text, re.MULTILINE)
    assert stages == ([cell.strategy[4:]] if cell.strategy.startswith("zero") else [])
    handed = re.findall(r'--deepspeed_config "\$HPC_LAUNCH_STRATEGY_CONFIG"', text)
    assert len(handed) == len(stages)
    assert ("job_strategy_config() {" in text) == bool(stages)
    assert ("export ACCELERATE_USE_FSDP=true" in text) == (cell.strategy == "fsdp")
    assert ("--tensor-model-parallel-size 2" in text) == (cell.strategy == "megatron")
    # Megatron wants it of CUDA alone.
    wanted = cell.strategy == "megatron" and cell.vendor == "nvidia"
    assert ("export CUDA_DEVICE_MAX_CONNECTIONS=1" in text) == wanted


def _is_inside(cell: Cell, text: str, folder: Path) -> None:
    words = _words_of_the_runtime(cell, text, folder)
    options = {word[2:].partition("=")[0] for word in words if word.startswith("--") and word != "--"}
    assert options <= OPTIONS[cell.runtime]
    assert [word for word in words if word in GPU_WORDS] == GPU.get(cell.runtime, {}).get(cell.vendor, [])
    # What the job and its strategy set has to beat what the image sets.
    names = ["HCA", *(["HPC_LAUNCH_STRATEGY"] if cell.strategy != "none" else [])]
    names += ["ACCELERATE_USE_FSDP"] if cell.strategy == "fsdp" else []
    for name in names:
        assert re.search(rf"^ *export {name}=", text, re.MULTILINE)
        if cell.runtime in ("apptainer", "singularity"):
            assert f"job_image_prefix={cell.runtime.upper()}ENV_\n" in text
            (names_inside,) = re.findall(r"^job_image_variables=\(([^)]*)\)", text, re.MULTILINE)
            assert name in names_inside.split()
        elif cell.runtime == "pyxis":
            (handed,) = (word for word in words if word.startswith("--container-env="))
            assert name in handed.partition("=")[2].split(",")
        elif cell.runtime == "podman-hpc":
            given = [after for word, after in pairwise(words) if word == "--env"]
            assert name in given or (name.startswith("HPC_LAUNCH_") and "HPC_LAUNCH_*" in given)
    if cell.runtime != "edf":  # its file says what is mounted
        # The file of the strategy lies in the run folder.
        assert any("$HPC_LAUNCH_RUN_DIR" in word for word in words)


def _words_of_the_runtime(cell: Cell, text: str, folder: Path) -> list[str]:
    """The runtime's words as bash splits them; they have to stand before the launcher, or among the options of srun."""
    plan, _ = planned(cell, folder)
    assert plan is not None
    form = wrap_command(plan.container)
    joined = text.replace("\\\n", " ")
    if form.step:
        line = next(line for line in joined.splitlines() if line.startswith("    exec srun --nodes"))
        words = shlex.split(line)
        return [word for word in words if re.match(r"--(no-)?container-|--environment", word)]
    program = "".join(map(str, form.before[0][0]))
    after = {
        "srun": "python3",
        "deepspeed, no ssh": "deepspeed.launcher.runner",
        "ft_launcher": "nvidia_resiliency_ext.fault_tolerance.launcher",
    }.get(cell.launcher, "torch.distributed.run")
    line = next(
        line for line in joined.splitlines() if re.search(rf"(^|\s){program} ", line) and not line.startswith("#")
    )
    words = shlex.split(line)
    assert words.index(program) < words.index(after)
    return words[words.index(program) : words.index("/bin/sh")]


def test_shellcheck_finds_nothing_with_any_runtime_under_any_launcher(folder: Path) -> None:
    """A script for each pair; strategies and vendors take turns, as their lines do not depend on the pair."""
    scripts = []
    for launcher in LAUNCHERS:
        for number, runtime in enumerate(RUNTIMES):
            mine = [cell for cell in LAUNCHED if (cell.launcher, cell.runtime) == (launcher, runtime)]
            scripts += [script(cell, folder) for cell in mine[number * 5 % 21 : number * 5 % 21 + 1]]
    assert len(set(scripts)) == len(scripts) == 5 * len(RUNTIMES) + 2
    assert shellcheck_own_parts(scripts) == ""


def test_every_test_that_the_table_names_is_there() -> None:
    named = {test for tests in RUN.values() for test in tests.values()}
    assert named
    files = sorted({test.partition("::")[0] for test in named})
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    collected = done.stdout.splitlines()
    assert named <= {*collected, *(test.partition("[")[0] for test in collected)}


def test_the_page_is_in_step() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"
