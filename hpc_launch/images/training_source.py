"""What the source of a training tells, which is parsed and never imported: the modules and options that it requires."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.errors import UsageError

MAX_FILES = 300
"""Maximum number of files beside the script that are followed."""


def top_imports(script: Path) -> set[str]:
    """The top-level modules that the script, and the files beside it that it imports, require.

    Imports under `try` or `if TYPE_CHECKING` are optional; imports in functions happen later. Raises OSError,
    SyntaxError or ValueError for a script that cannot be read.
    """
    folder = script.parent
    modules: set[str] = set()
    files, visited = [script], {script}
    while files and len(visited) <= MAX_FILES:
        path = files.pop()
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (OSError, SyntaxError, ValueError):
            if path == script:
                raise
            continue
        for name in _names(tree.body):
            first = name.partition(".")[0]
            own = [file for file in (folder / first / "__init__.py", folder / f"{first}.py") if os.path.isfile(file)]
            if not own and not os.path.isdir(folder / first):
                modules.add(first)
            files += [file for file in own if file not in visited]
            visited.update(own)
    return modules


def needed_modules(script: str | None, module: str | None, *, torch: bool) -> tuple[list[str], str | None]:
    """The modules that a training's Python must find, and why its script could not be read, if so."""
    names = {"torch"} if torch else set()
    if module is not None:
        names.add(module.partition(".")[0])
    unread = None
    if script is not None:
        try:
            names |= top_imports(Path(script))
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            unread = f"cannot read {script}: {error}"
    return sorted(names), unread


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.module
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            yield from _names([*node.body, *node.orelse])
        elif isinstance(node, ast.With | ast.ClassDef):
            yield from _names(node.body)


MAX_BYTES = 2 << 20
_FRAMEWORKS = "deepspeed megatron lightning pytorch_lightning accelerate trl transformers torchtitan".split()
_SEVERAL = re.compile(
    rb"torch\.distributed|from torch import .*distributed|init_process_group|[\"'](LOCAL_RANK|WORLD_SIZE|RANK)[\"']"
)


class TrainingSource(Struct, frozen=True):
    """What the source of a training tells: the options that its command line requires, with their help texts, by their
    names as keys of `args:`, and the launcher that starts such a training."""

    required: dict[str, str]
    launcher: str


def read_training(path: Path) -> TrainingSource:
    """Read a Python file. Raises UsageError if it cannot be parsed."""
    try:
        if os.path.exists(path) and (not os.path.isfile(path) or path.stat().st_size > MAX_BYTES):
            raise UsageError(f"{path} is not a file of less than 2 MiB", "name the training's Python file")
        source = path.read_bytes()
        tree, modules = ast.parse(source, filename=str(path)), top_imports(path)
        required = dict(_required(tree))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name the training's Python file") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path} is not Python that can be parsed: {error}", "name a Python file") from error
    several = _SEVERAL.search(source) is not None or not modules.isdisjoint(_FRAMEWORKS)
    return TrainingSource(required, "deepspeed" if "deepspeed" in modules else "torchrun" if several else "none")


def _required(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The required options that argparse's method or click's decorators declare, and their help texts."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument" | "option")):
                names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                chosen = next((name for name in names if name.startswith("--")), names[0] if names else "")
                constants = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
                if chosen.startswith("-") and constants.get("required"):
                    yield chosen.lstrip("-").partition("/")[0], str(constants.get("help", ""))
