"""Conditions of a script that its own text decides: `[ -z "$X" ]`, `[[ $A == b ]]`."""

from __future__ import annotations

from hpc_launch.from_script.scope import Scope
from hpc_launch.from_script.shell_tree import Node, text_of
from hpc_launch.from_script.values import Value


def truth(node: Node, scope: Scope) -> bool | None:
    """Whether the condition holds; None if only the job knows."""
    if node.type != "test_command" or len(node.named_children) != 1:
        return None
    inner = node.named_children[0]
    parts = [child for child in inner.children if child.type not in {"[", "]", "[[", "]]"}]
    if inner.type == "unary_expression" and len(parts) == 2:
        value = _certain(parts[1], scope)
        operator = text_of(parts[0])
        if value is None or operator not in {"-z", "-n"}:
            return None
        return (not value) if operator == "-z" else bool(value)
    if inner.type == "binary_expression" and len(parts) == 3:
        left, right = _certain(parts[0], scope), _certain(parts[2], scope)
        operator = text_of(parts[1])
        if left is None or right is None or "*" in right:
            return None
        if operator in {"==", "="}:
            return left == right
        if operator == "!=":
            return left != right
        numbers = {"-eq": "==", "-ne": "!=", "-gt": ">", "-lt": "<", "-ge": ">=", "-le": "<="}
        if operator in numbers and left.isdecimal() and right.isdecimal():
            return _compare(numbers[operator], int(left), int(right))
    return None


def _compare(operator: str, left: int, right: int) -> bool:
    return {
        "==": left == right,
        "!=": left != right,
        ">": left > right,
        "<": left < right,
        ">=": left >= right,
        "<=": left <= right,
    }[operator]


def _certain(node: Node, scope: Scope) -> str | None:
    value: Value = scope.value(node)
    return value.text if value.known and "${" not in value.text else None
