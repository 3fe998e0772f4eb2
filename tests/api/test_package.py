"""`import hpc_launch`: nothing is loaded before it is used, and names stay what they are."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hpc_launch as hl

API = Path(hl.__file__).parent / "api"


def loaded(code: str) -> set[str]:
    program = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(subprocess.check_output([sys.executable, "-c", program])))


def test_the_import_loads_one_module() -> None:
    assert loaded("import hpc_launch") - loaded("") == {"hpc_launch"}


def test_a_name_loads_what_it_needs() -> None:
    more = loaded("import hpc_launch; hpc_launch.Job") - loaded("")
    assert not [name for name in more if name.startswith(("hpc_launch.runs", "hpc_launch.schedulers", "submitit"))]
    assert not more & {"asyncio", "logging", "rich", "sqlite3"}


def test_functions_stay_functions_when_a_package_of_their_name_is_imported() -> None:
    code = (
        "import hpc_launch as hl, hpc_launch.plan.build_plan, hpc_launch.runs.layout\n"
        "from hpc_launch.runs import layout\n"
        "from hpc_launch import plan, runs\n"
        "assert callable(hl.plan) and callable(hl.runs) and plan is hl.plan and runs is hl.runs\n"
        "assert layout.RunFolder"
    )
    assert loaded(code)


@pytest.mark.parametrize("name", [name for name in hl.__all__ if name != "__version__"])
def test_every_name_exists_and_says_what_it_is(name: str) -> None:
    found = getattr(hl, name)
    assert inspect.getdoc(found)
    assert name in dir(hl)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'hpc_launch' has no attribute 'submitt'"):
        hl.submitt  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("path", sorted(API.glob("*.py")), ids=lambda path: path.name)
def test_the_api_neither_prints_nor_exits(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in imported} & {"click", "rich"}
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {"print", "sys.exit", "exit", "input"}
