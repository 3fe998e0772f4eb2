"""The built wheel alone in an empty environment, outside the checkout: it finds its files and submits the example."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, code: int = 0, **more: str) -> str:
    """What a command prints in a clean environment: of the caller's only what pip needs to reach its packages."""
    kept = {
        key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_")) or key.endswith("_proxy")
    }
    environment = {**kept, "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(cwd), **more}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, REPOSITORY, cwd=folder)
    (wheel,) = folder.glob("hpc_launch-*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "-c", REPOSITORY / "constraints.txt", wheel, cwd=folder)
    return folder / "env"


def test_it_brings_neither_torch_nor_deepspeed(installed: Path) -> None:
    names = {path.name for path in (installed / "lib").glob("python*/site-packages/*")}
    assert not names & {"torch", "deepspeed", "pydantic"}
    assert "msgspec" in names


def test_type_checkers_find_the_types(installed: Path) -> None:
    (package,) = installed.glob("lib/python*/site-packages/hpc_launch")
    assert (package / "py.typed").exists()
    assert (package / "api" / "job_keys.pyi").exists()


@pytest.mark.prove
def test_a_users_project_passes_mypy(installed: Path, tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "tests" / "api" / "users_project.py", tmp_path / "project.py")
    options = ("--strict", "--python-executable", installed / "bin" / "python", "project.py")
    assert "no issues found" in run(sys.executable, "-m", "mypy", *options, cwd=tmp_path)


@pytest.mark.torch
def test_it_submits_the_example(installed: Path, tmp_path: Path) -> None:
    (job,) = installed.glob("lib/python*/site-packages/hpc_launch/_data/examples/tiny-gpt/job.yaml")
    launch = installed / "bin" / "hpc-launch"
    assert "--site NAME" in run(launch, "submit", "--help", cwd=tmp_path)
    # torch is not in this environment: the job names the interpreter that has it.
    sets = ("--set", f"environment.python={sys.executable}", "--set", "args.steps=3", "--set", "nodes=1")
    assert "COMPLETED" in run(launch, "submit", job, "--site", "local", "--wait", *sets, cwd=tmp_path)
    assert "COMPLETED" in run(launch, "list", cwd=tmp_path)


def test_the_recipes_for_images_are_in_it(installed: Path, tmp_path: Path) -> None:
    launch = installed / "bin" / "hpc-launch"
    said = run(launch, "containers", "build", "no-such-recipe", cwd=tmp_path, code=2)
    assert "name a file, or one of cpu, cuda, rocm" in said
    assert list(installed.glob("lib/python*/site-packages/hpc_launch/_data/containers/*.Containerfile"))


def test_the_manual_is_in_it(installed: Path, tmp_path: Path) -> None:
    launch = installed / "bin" / "hpc-launch"
    assert "# Recovery" in run(launch, "docs", "recovery", cwd=tmp_path)
    assert "Cannot read the file" in run(launch, "explain", "HL001", cwd=tmp_path)
    (package,) = installed.glob("lib/python*/site-packages/hpc_launch")
    assert not list((package / "_data" / "docs").rglob("*.py")), "what generates the pages stays in the repository"
    assert (package / "_data" / "docs" / "schema" / "job.schema.json").is_file()


def test_a_job_without_torch_says_what_is_missing(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('never')\n")
    (tmp_path / "job.yaml").write_text("name: x\nsite: local\nscript: train.py\nprocesses_per_node: 1\n")
    launch = installed / "bin" / "hpc-launch"
    said = run(launch, "submit", "job.yaml", "--wait", cwd=tmp_path, code=1)
    assert "No module named 'torch'" in said
    assert "<!DOCTYPE html>" in run(launch, "report", "@last", cwd=tmp_path)
