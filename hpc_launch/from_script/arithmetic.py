"""`$((…))` of whole numbers that the script's text decides."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from hpc_launch.from_script.values import Value

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)|\b([A-Za-z_]\w*)\b|\$\{(#\w+\[[@*]\])\}")
_LARGEST = 1 << 62


def evaluate(text: str, lookup: Callable[[str], Value]) -> Value | None:
    """The result; None if a part is unknown or not whole numbers."""
    if len(text) > 200:
        return None
    failed = False

    def number(found: re.Match[str]) -> str:
        nonlocal failed
        value = lookup(found[1] or found[2] or found[3] or "")
        if not value.known or not value.text.isdecimal():
            failed = True
        return str(int(value.text)) if value.text.isdecimal() else "0"

    filled = _VARIABLE.sub(number, text)
    if failed:
        return None
    try:
        result = _number(ast.parse(filled.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return Value(str(result))


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        if isinstance(node.op, ast.Add):
            result = left + right
        elif isinstance(node.op, ast.Sub):
            result = left - right
        elif isinstance(node.op, ast.Mult):
            result = left * right
        elif isinstance(node.op, ast.FloorDiv):
            result = left // right
        elif isinstance(node.op, ast.Mod):
            result = left % right
        else:
            raise ValueError(node)  # noqa: TRY004 - a sum that is not known
        if abs(result) < _LARGEST:
            return result
    raise ValueError(node)
