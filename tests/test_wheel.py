"""The built wheel alone in an empty environment, outside the checkout: it finds its files and submits the example.

uv installs it for every test; pip and pipx do with `make prove`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
import yaml

import hpc_launch

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parent.parent
ADDRESS = "https://git.example.org/team/hpc-launch"
"""Where the workflows say that the repository is."""
FRESH = "name: x\nsite: local\nlauncher: none\nscript: train.py\n"


def run(*command: str | Path, cwd: Path, code: int = 0, **more: str) -> str:
    """What a command prints in a clean environment: of the caller's only what pip needs to reach its packages."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key.startswith(("PIP_", "SSL_", "UV_")) or key.endswith("_proxy")
    }
    environment = {**kept, "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(cwd), **more}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def uv() -> str:
    """The program uv."""
    return shutil.which("uv") or pytest.skip("needs uv: pip install -e '.[release]'")


@pytest.fixture(scope="module")
def built(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    run(uv, "build", "--quiet", "--out-dir", folder, REPOSITORY, cwd=folder, REPOSITORY_URL=ADDRESS)
    return folder


@pytest.fixture(scope="module")
def installed(uv: str, built: Path) -> Path:
    """An environment that holds the wheel and what it asks for, and nothing else."""
    (wheel,), folder = built.glob("hpc_launch-*.whl"), built / "env"
    run(uv, "venv", "--quiet", "--python", sys.executable, folder, cwd=built)
    options = ("--python", folder / "bin" / "python", "--constraints", REPOSITORY / "constraints.txt")
    run(uv, "pip", "install", "--quiet", *options, wheel, cwd=built)
    return folder


def test_it_brings_neither_torch_nor_deepspeed(installed: Path) -> None:
    names = {path.name for path in (installed / "lib").glob("python*/site-packages/*")}
    assert not names & {"torch", "deepspeed", "pydantic"}
    assert "msgspec" in names


def test_an_index_shows_what_it_is_where_it_comes_from_and_its_licence(installed: Path) -> None:
    (folder,) = installed.glob("lib/python*/site-packages/hpc_launch-*.dist-info")
    about = PathDistribution(folder).metadata
    assert about["License-Expression"] == "MIT"
    assert (folder / "licenses" / "LICENSE").read_text() == (REPOSITORY / "LICENSE").read_text()
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= set(about.get_all("Classifier") or [])
    links = dict(link.split(", ") for link in about.get_all("Project-URL") or [])
    assert links["Source"] == ADDRESS
    assert {"Changelog", "Documentation", "Issues"} <= set(links)
    text = (folder / "METADATA").read_text()
    assert f"]({ADDRESS}/blob/v{about['Version']}/docs/how-to/recovery.md)" in text
    assert f"]({ADDRESS}/raw/v{about['Version']}/docs/images/run.svg)" in text
    assert "](docs/" not in text


def test_those_who_cite_it_name_this_version() -> None:
    assert yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["version"] == hpc_launch.__version__


def test_type_checkers_find_the_types(installed: Path) -> None:
    (package,) = installed.glob("lib/python*/site-packages/hpc_launch")
    assert (package / "py.typed").exists()
    assert (package / "api" / "job_keys.pyi").exists()


@pytest.mark.prove
def test_a_users_project_passes_mypy(installed: Path, tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "tests" / "api" / "users_project.py", tmp_path / "project.py")
    options = ("--strict", "--python-executable", installed / "bin" / "python", "project.py")
    assert "no issues found" in run(sys.executable, "-m", "mypy", *options, cwd=tmp_path)


@pytest.mark.prove
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


# --- Other ways to build and install it ---


@pytest.mark.prove
def test_the_source_distribution_holds_what_the_wheel_is_built_from(built: Path, tmp_path: Path) -> None:
    (source,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, REPOSITORY, cwd=tmp_path)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CITATION.cff", "CHANGELOG.md", "tests/test_wheel.py", "Makefile"} <= names


@pytest.mark.prove
@pytest.mark.parametrize("installer", ["uv tool", "pipx", "pip"])
def test_a_stranger_installs_it_as_a_program_of_its_own(built: Path, installer: str, tmp_path: Path) -> None:
    program, *words = installer.split()
    (wheel,) = built.glob("*.whl")
    if program == "pip":
        venv.create(tmp_path / ".local", with_pip=True)
        program = str(tmp_path / ".local" / "bin" / "pip")
    found = shutil.which(program) or pytest.skip(f"needs {program}: pip install -e '.[release]'")
    run(found, *words, "install", wheel, cwd=tmp_path)
    launch = tmp_path / ".local" / "bin" / "hpc-launch"
    assert hpc_launch.__version__ in run(launch, "--version", cwd=tmp_path)
    assert "# Recovery" in run(launch, "docs", "recovery", cwd=tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "job.yaml").write_text(FRESH)
    assert "COMPLETED" in run(launch, "submit", "job.yaml", "--wait", cwd=tmp_path)


@pytest.mark.prove
@pytest.mark.parametrize("versions", ["lowest-direct", "highest"])
@pytest.mark.parametrize("python", ["3.10", "3.14"])
def test_the_dependencies_of_all_extras_fit_together(uv: str, versions: str, python: str, tmp_path: Path) -> None:
    options = ("--all-extras", "--resolution", versions, "--python-version", python, "--quiet")
    assert "\ntorch==" in run(uv, "pip", "compile", *options, REPOSITORY / "pyproject.toml", cwd=tmp_path)


@pytest.mark.prove
def test_the_citation_is_valid(uv: str, tmp_path: Path) -> None:
    citation = REPOSITORY / "CITATION.cff"
    done = run(uv, "tool", "run", "cffconvert@2.0.0", "--validate", "-i", citation, cwd=tmp_path)
    assert "valid according to schema version 1.2.0" in done
