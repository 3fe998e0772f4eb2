"""Forty sbatch scripts: each converts to a valid job whose plan starts the same program, and no line is dropped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_launch.from_script.convert import ComparedValue, Conversion, compare, convert, is_same
from hpc_launch.job.shell_text import Text, Var

SCRIPTS = sorted(Path(__file__).with_name("scripts").glob("*.sbatch"))


def expected(script: Path) -> dict[str, Any]:
    result: dict[str, Any] = yaml.safe_load(script.with_suffix(".yaml").read_text())
    return result


def converted(script: Path, folder: Path) -> Conversion:
    """The conversion in a folder that has the files that the script names."""
    for name in expected(script).get("files", []):
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text("")
    for name, text in expected(script).get("texts", {}).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755 if text.startswith("#!") else 0o644)
    return convert(script, output=folder / "job.yaml", site=None, environment={}, folder=str(folder))


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def shown(text: Text, folder: Path) -> str:
    parts = (f"${part.name}" if isinstance(part, Var) else part for part in text)
    return "".join(parts).removeprefix(f"{folder}/")


def by_name(rows: list[ComparedValue]) -> dict[str, ComparedValue]:
    return {row.what: row for row in rows}


@pytest.mark.parametrize("script", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_script(script: Path, tmp_path: Path) -> None:
    want, conversion = expected(script), converted(script, tmp_path)
    accounts = conversion.script.accounts
    lines = script.read_text().split("\n")
    assert [account.line for account in accounts] == [number for number, line in enumerate(lines, 1) if line.strip()]
    assert all(account.keys or account.why for account in accounts)
    doubts = conversion.script.of("not_understood")
    assert len(doubts) == len(want["not_understood"])
    for account, fragment in zip(doubts, want["not_understood"], strict=True):
        assert fragment in account.text

    prepared = conversion.prepare()
    plan, rows = prepared.plan, compare(conversion.script, prepared)
    assert is_same(rows), [row for row in rows if row.status == "different"]
    assert plan.launcher == want["launcher"]
    assert plan.nodes == want["nodes"]
    found = by_name(rows)
    assert found["processes per node"].new == str(want.get("processes_per_node", 1))
    assert found["processes"].new == str(want.get("processes", want["nodes"] * want.get("processes_per_node", 1)))
    if "program" in want:
        assert (found["program"].new or "").removeprefix(f"{tmp_path}/") == want["program"]
        assert found["arguments"].new == want.get("args", "")
    values = {variable.name: variable.value for variable in plan.variables}
    assert {
        name: "".join(f"${part.name}" if isinstance(part, Var) else part for part in values[name] or ())
        for name in want["env"]
    } == want["env"]
    for kind in ("module", "conda", "venv", "source"):
        asked = want.get("modules" if kind == "module" else kind, [])
        steps = [shown(step.argument, tmp_path) for step in plan.prelude if step.kind == kind]
        assert steps == ([os.path.expanduser(asked)] if isinstance(asked, str) else asked)
    image = plan.container.image.removeprefix(f"{tmp_path}/") if plan.container is not None else None
    assert image == want.get("image")
    assert list(plan.secrets) == want.get("secrets", [])
    assert plan.master.suffix == want.get("suffix", "")
    assert "secretsecret" not in conversion.job_file
    assert "0123456789abcdef" not in conversion.job_file
