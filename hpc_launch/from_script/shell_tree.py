"""The syntax tree of a shell script, by tree-sitter and its grammar of bash. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from hpc_launch.base.errors import UsageError

Node = Any
"""A `tree_sitter.Node`; its packages are imported only when a script is read."""
DEEPEST = 100
"""Deeper nesting than people write: `((((…`."""


@cache
def _parser() -> Any:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        message = f"reading shell scripts needs tree-sitter and its bash grammar: {error}"
        raise UsageError(message, "install them: pip install tree-sitter tree-sitter-bash") from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: str) -> Node:
    """The root node. Text that bash would refuse has nodes of the type ERROR."""
    return _parser().parse(text.encode("utf-8", "replace")).root_node


def text_of(node: Node) -> str:
    """The text of a node."""
    return str(node.text.decode("utf-8", "replace"))


def lines_of(node: Node) -> range:
    """The numbers of the lines that a node covers, from 1."""
    last = node.end_point[0] + (1 if node.end_point[1] else 0)
    return range(node.start_point[0] + 1, max(last, node.start_point[0] + 1) + 1)


def depth_is_bounded(node: Node) -> bool:
    """Whether no node is nested deeper than scripts are."""
    stack = [(node, 0)]
    while stack:
        at, depth = stack.pop()
        if depth > DEEPEST:
            return False
        stack.extend((child, depth + 1) for child in at.named_children)
    return True


def find_all(node: Node, kind: str) -> Iterator[Node]:
    """Every node of a type, in order."""
    if node.type == kind:
        yield node
    for child in node.named_children:
        yield from find_all(child, kind)
