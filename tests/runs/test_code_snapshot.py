"""The copy of the code: what is in it, what is linked, and when there is none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.base.run_program import commit_of
from hpc_launch.plan.recorded_parts import CodePlan
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.submitting import code_snapshot
from hpc_launch.runs.submitting.code_snapshot import take_snapshot


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "lib" / "__pycache__").mkdir(parents=True)
    (folder / "train.py").write_text("import lib\n")
    (folder / "lib" / "__init__.py").write_text("x = 1\n")
    (folder / "lib" / "__pycache__" / "x.pyc").write_bytes(b"0")
    (folder / ".env").write_text("TOKEN=very-secret\n")
    (folder / "weights.bin").write_bytes(bytes(code_snapshot.LARGE_FILE + 1))
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("a")
    (folder / "venv").mkdir()
    (folder / "venv" / "pyvenv.cfg").write_text("")
    return folder


def taken(project: Path, **wanted: Any) -> tuple[Path, dict[str, Any]]:
    run = RunFolder(project / "runs" / "tiny-1")
    run.path.mkdir(parents=True)
    (run.path / "run.json").write_text("{}")
    take_snapshot(run, CodePlan(str(project), **wanted))
    return run.path / "code", json.loads((run.path / "code.json").read_text())


def test_code_is_copied_and_all_else_is_linked(project: Path) -> None:
    code, note = taken(project, exclude=["data"])
    assert (code / "lib" / "__init__.py").read_text() == "x = 1\n"
    assert not (code / "lib").is_symlink()
    assert not (code / "lib" / "__pycache__").exists()
    linked = {name for name in ("weights.bin", "data", "venv", "runs", ".env") if (code / name).is_symlink()}
    assert linked == {"weights.bin", "data", "venv", "runs", ".env"}
    assert (note["kept"], note["files"]) == (True, 2)
    (project / "lib" / "__init__.py").write_text("x = 2\n")
    assert (code / "lib" / "__init__.py").read_text() == "x = 1\n"


def test_too_much_is_not_copied_and_the_note_says_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_snapshot, "MAX_ENTRIES", 3)
    code, note = taken(project)
    assert not code.exists()
    assert note["kept"] is False
    assert "entries" in note["why"]


def test_over_the_limit_is_too_much(project: Path) -> None:
    for number in range(3):
        (project / f"{number}.txt").write_bytes(bytes(code_snapshot.LARGE_FILE - 1))
    code, note = taken(project, limit_mib=1)
    assert not code.exists()
    assert "1 MiB" in note["why"]


def test_without_a_wish_there_is_none(tmp_path: Path) -> None:
    take_snapshot(RunFolder(tmp_path), None)
    assert list(tmp_path.iterdir()) == []


WHO = ("-c", "user.name=u", "-c", "user.email=u@x")


def git(folder: Path, *commands: list[str]) -> None:
    for words in commands:
        subprocess.run(["git", *WHO, *words], cwd=folder, check=True, capture_output=True)


def test_of_a_work_tree_what_git_ignores_is_linked(project: Path) -> None:
    (project / ".gitignore").write_text("data/\nvenv\n*.bin\nversion.py\nruns\n")
    (project / "version.py").write_text("version = 1\n")
    git(project, ["init", "-q"], ["add", "train.py", ".gitignore"], ["commit", "-qm", "x"])
    (project / "new.py").write_text("not added yet\n")
    code, note = taken(project)
    linked = {path.name for path in code.iterdir() if path.is_symlink()}
    assert linked == {"weights.bin", "data", "venv", "runs", ".env", "version.py", ".git"}
    assert {path.name for path in code.iterdir()} - linked == {"train.py", "new.py", "lib", ".gitignore"}
    assert (code / "version.py").read_text() == "version = 1\n"
    assert (note["kept"], note["commit"]) == (True, commit_of(project))


def test_a_work_tree_runs_nothing_that_it_configures(project: Path) -> None:
    git(project, ["init", "-q"], ["config", "core.fsmonitor", f"touch {project}/ran"])
    taken(project)
    assert not (project / "ran").exists()


def test_the_commit_that_is_checked_out(project: Path) -> None:
    assert commit_of(project / "lib") is None
    git(project, ["init", "-q"], ["add", "train.py"], ["commit", "-qm", "x"], ["worktree", "add", "-q", "tree"])
    commit = (project / ".git" / "refs" / "heads" / "tree").read_text().strip()
    assert commit_of(project / "lib") == commit_of(project / "tree") == commit
