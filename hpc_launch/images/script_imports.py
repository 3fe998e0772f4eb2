"""The modules that a script imports at the top level, from its source; nothing is executed."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

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
        for name in _names(tree.body, path, folder):
            first = name.partition(".")[0]
            own = [
                folder.joinpath(*name.split(".")).with_suffix(".py"),
                folder / first / "__init__.py",
                folder / f"{first}.py",
            ]
            own = [file for file in own if os.path.isfile(file)]
            if not own and not os.path.isdir(folder / first):
                modules.add(first)
            files += [file for file in own if file not in visited]
            visited.update(own)
    return modules


def _names(body: list[ast.stmt], path: Path, folder: Path) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and node.module is not None:
                yield node.module
            elif node.level:
                yield from _relative(node, path, folder)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            yield from _names(node.body, path, folder)
            yield from _names(node.orelse, path, folder)
        elif isinstance(node, ast.With | ast.ClassDef):
            yield from _names(node.body, path, folder)


def _relative(node: ast.ImportFrom, path: Path, folder: Path) -> Iterator[str]:
    """Resolve `from . import x` and `from .x import y` of a package beside the script."""
    base = path.parent
    for _ in range(node.level - 1):
        base = base.parent
    if not base.is_relative_to(folder) or base == folder:
        return
    package = ".".join(base.relative_to(folder).parts)
    if node.module is not None:
        yield f"{package}.{node.module}"
    else:
        yield from (f"{package}.{alias.name}" for alias in node.names)
