"""Change values in the text of a job file and keep its comments and formatting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import asdict

from hpc_launch.base.errors import UserError
from hpc_launch.job.parallel import Parallel
from hpc_launch.job.yaml_errors import SourceError
from hpc_launch.job.yaml_nodes import YamlNode, root_node
from hpc_launch.job.yaml_source import parse_document


class Edit(Struct, frozen=True):
    """Values of the mapping at `path`. Whatever it holds beside these keys stays."""

    path: tuple[str, ...]
    values: Mapping[str, object]
    resets: Mapping[str, object] = {}
    """Values of keys that the file has and `values` has not, such as the defaults."""


def layout_edit(parallel: Parallel) -> Edit:
    """This `parallel:`, as the fields that differ from the defaults, and always `tp` and `pp`."""
    defaults = asdict(Parallel())
    values = {
        field: value
        for field, value in asdict(parallel).items()
        if value != defaults[field] or field in ("tp", "pp")
    }  # fmt: skip
    return Edit(("parallel",), values, defaults)


def with_edits(text: str, edits: Sequence[Edit], name: str = "job.yaml") -> str:
    """The text of a job file with these values. Existing keys keep their lines, new ones follow them.

    The result is read again: everything else must mean what it did. Raises UserError if it does not, as with anchors
    inside a block that other keys refer to, or if the text is not a job file.
    """
    if text.count("\r\n") == text.count("\n") > 0:
        return with_edits(text.replace("\r\n", "\n"), edits, name).replace("\n", "\r\n")
    for edit in edits:
        text = _with_edit(text, edit, name)
    return text


def _with_edit(text: str, edit: Edit, name: str) -> str:
    before, findings = parse_document(text, name)
    if before is None or findings:
        raise UserError(f"cannot edit {name}: {findings[0]}", "correct the file first")
    result = _edited(text, edit, name)
    after, findings = parse_document(result, name)
    if after is None or findings or after.data != _changed(before.data, edit):
        raise UserError(f"cannot change `{_key(edit)}:` of {name} without changing the rest of the file", _hint(edit))
    return result


def _changed(data: dict[str, Any], edit: Edit) -> dict[str, Any]:
    """What the file must mean afterwards."""
    result = deepcopy(data)
    *above, last = edit.path
    parent = result
    for key in above:
        parent = parent[key]
    held = parent.get(last)
    values = dict(held) if isinstance(held, dict) else {}
    parent[last] = values | {key: value for key, value in edit.resets.items() if key in values} | dict(edit.values)
    return result


def _edited(text: str, edit: Edit, name: str) -> str:
    try:
        root = root_node(text, name)
    except (SourceError, yaml.YAMLError) as error:
        raise UserError(f"cannot edit {name}: {error}", "correct the file first") from error
    if root is None or root.event.flow_style:
        raise UserError(f"cannot add `{_key(edit)}:` to {name}: its keys are in braces", _hint(edit))
    values = {key: _text(value) for key, value in edit.values.items()}
    node: YamlNode | None = root
    for key in edit.path:
        parent, node = node, _child(node, key) if node is not None else None
        if node is None and parent is not root:
            raise UserError(f"{name} has no `{_key(edit)}:`", _hint(edit))
    if node is None:
        block = f"{edit.path[-1]}:\n" + "".join(f"  {key}: {value}\n" for key, value in values.items())
        indent = " " * root.children[0].event.start_mark.column
        return (
            text + ("" if text.endswith("\n") else "\n") + "".join(f"{indent}{line}\n" for line in block.splitlines())
        )
    if node.target is not None or not isinstance(node.event, (yaml.MappingStartEvent, yaml.ScalarEvent)):
        raise UserError(f"`{_key(edit)}:` of {name} is defined elsewhere in the file", _hint(edit))
    if not node.children:
        return _replaced_whole(text, node, values)
    return _replaced_keys(text, node, values, {key: _text(value) for key, value in edit.resets.items()} | values)


def _replaced_whole(text: str, node: YamlNode, values: dict[str, str]) -> str:
    """Write the values in place of an empty value, a single word or an empty mapping."""
    start, end = _span(node)
    if text.startswith("{", start):
        end = text.index("}", start) + 1
    return text[:start] + ("" if text[start - 1 : start].isspace() else " ") + _inline(values) + text[end:]


def _replaced_keys(text: str, node: YamlNode, values: dict[str, str], known: dict[str, str]) -> str:
    """Replace the values of existing keys, and add those that are missing after the last one with a single value."""
    missing = dict(values)
    edits: list[tuple[int, int, str]] = []
    last = None
    for key, value in zip(node.children[::2], node.children[1::2], strict=True):
        field = str(getattr(key.resolved.event, "value", ""))
        missing.pop(field, None)
        if not isinstance(value.event, (yaml.ScalarEvent, yaml.AliasEvent)):
            continue
        start, end = _span(value)
        last = end
        if field in known:
            edits.append((start, end, ("" if text[start - 1 : start].isspace() else " ") + known[field]))
    if missing:
        edits.append(_added(text, node, last, [f"{key}: {value}" for key, value in missing.items()]))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _added(text: str, node: YamlNode, last: int | None, lines: list[str]) -> tuple[int, int, str]:
    """Where these keys go: behind the value that ends at `last`, or before all others."""
    first: Any = node.children[0].event.start_mark
    between = ", " if node.event.flow_style else "\n" + " " * first.column
    if last is None:
        return first.index, first.index, between.join([*lines, ""])
    if not node.event.flow_style:
        newline = text.find("\n", last)
        last = len(text) if newline < 0 else newline
    return last, last, between.join(["", *lines])


def _span(node: YamlNode) -> tuple[int, int]:
    """Where the node's event starts and ends: of a mapping, its opening."""
    event = node.event
    return event.start_mark.index, event.end_mark.index


def _child(mapping: YamlNode, name: str) -> YamlNode | None:
    for key, value in zip(mapping.children[::2], mapping.children[1::2], strict=False):
        if getattr(key.resolved.event, "value", None) == name:
            return value
    return None


def _key(edit: Edit) -> str:
    return ".".join(edit.path)


def _hint(edit: Edit) -> str:
    return f"enter the values by hand, or write `{edit.path[0]}:` as a plain block"


def _inline(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return _inline({str(key): _text(held) for key, held in value.items()})
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
