"""A script as text, whose bytes are hostile, and its syntax tree by tree-sitter's grammar of bash. Nothing is run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.errors import UsageError

MAX_BYTES = 4 << 20
"""Slurm's default limit of a script (slurm.conf(5), max_script_size)."""
DEEPEST = 100
"""Deeper nesting than people write: `((((…`."""
Node = Any
"""A `tree_sitter.Node`; its packages are imported only when a script is read."""


class ScriptText(Struct, frozen=True):
    """The text of a script, with LF line ends, and remarks on what was changed to read it."""

    text: str
    remarks: tuple[str, ...] = ()


def read_script(path: Path) -> ScriptText:
    """The script's text. Raises UsageError for a file that sbatch would refuse too, or that cannot be read."""
    try:
        if not os.path.isfile(path):
            raise UsageError(f"{path} is not a file", "name an sbatch script")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name an sbatch script") from error
    return decode(data, str(path))


def decode(data: bytes, name: str) -> ScriptText:
    """The text of a script's bytes. Raises UsageError as `read_script` does."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB, Slurm's limit of a script", "name a script")
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise UsageError(f"{name}:{line}: a NUL byte; sbatch refuses such a script", "name a text file in UTF-8")
    text = data.decode("utf-8", "replace")
    found = {
        "the script begins with a byte order mark; sbatch refuses such a script": text.startswith("\ufeff"),
        "the script is not valid UTF-8; the invalid bytes are shown as \ufffd": "\ufffd" in text,
        "the script has DOS line ends; sbatch refuses such a script": "\r" in text,
    }
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return ScriptText(text, tuple(remark for remark, holds in found.items() if holds))


@cache
def _parser() -> Any:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        message = f"reading shell scripts needs tree-sitter and its bash grammar: {error}"
        raise UsageError(message, "install them: pip install tree-sitter tree-sitter-bash") from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: str) -> Node | None:
    """The root node; None if it is nested deeper than scripts are. What bash would refuse has nodes of type ERROR."""
    root = _parser().parse(text.encode("utf-8", "replace")).root_node
    stack = [(root, 0)]
    while stack:
        at, depth = stack.pop()
        if depth > DEEPEST:
            return None
        stack.extend((child, depth + 1) for child in at.named_children)
    return root


def text_of(node: Node | None) -> str:
    """The text of a node."""
    return str(node.text.decode("utf-8", "replace")) if node is not None else ""


def lines_of(node: Node) -> range:
    """The numbers of the lines that a node covers, from 1."""
    last = node.end_point[0] + (1 if node.end_point[1] else 0)
    return range(node.start_point[0] + 1, max(last, node.start_point[0] + 1) + 1)


def find_all(node: Node, kind: str) -> Iterator[Node]:
    """Every node of a type, in order."""
    if node.type == kind:
        yield node
    for child in node.named_children:
        yield from find_all(child, kind)
