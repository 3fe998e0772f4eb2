"""The examples of docs/reference/python.md run, and the notebook with the same calls, as a reader would run them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import blocks

REPOSITORY = Path(__file__).parent.parent.parent
NOTEBOOK = REPOSITORY / "examples" / "notebook"


def test_every_example_of_the_page(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for example in blocks((REPOSITORY / "docs" / "reference" / "python.md").read_text("utf-8"), "python"):
        exec(compile(example, "docs/reference/python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "['COMPLETED', 'COMPLETED']" in said
    assert "HL013 Job.nodes" in said


async def run_cells(cells: list[dict[str, Any]]) -> list[Any]:
    """The values of the last lines of a notebook's code cells, run in a loop of events as Jupyter does."""
    names: dict[str, Any] = {}
    values: list[Any] = []
    for cell in cells:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body[-1]
            if isinstance(last, ast.Expr):
                tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], last.value), last)
            code = compile(ast.fix_missing_locations(tree), "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            found = eval(code, names)
            if inspect.isawaitable(found):
                await found
            values.append(names.pop("_", None))
    return values


@pytest.mark.prove
def test_the_notebook_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(NOTEBOOK / "train.py", project)
    cells = json.loads((NOTEBOOK / "training.ipynb").read_text("utf-8"))["cells"]
    values = asyncio.run(run_cells(cells))
    said = capsys.readouterr().out
    assert values[0] == []
    assert "COMPLETED" in values[2]._repr_html_()
    assert "20 steps, loss 64 to " in said
    assert "{'args.lr': '0.5'} loss 0" in said
    assert "ValueError: the training diverges" in said
    assert not any(cell.get("outputs") for cell in cells)
