"""Put a layout into the text of a job file and keep its comments and formatting."""

from __future__ import annotations

from typing import Any

import yaml
from msgspec.structs import asdict

from hpc_launch.base.errors import UserError
from hpc_launch.spec.parallel import Parallel
from hpc_launch.spec.yaml_errors import SourceError
from hpc_launch.spec.yaml_nodes import YamlNode, root_node
from hpc_launch.spec.yaml_source import parse_document

_KEY = "parallel"
_HINT = "enter the layout by hand, or write `parallel:` as a plain block"


def with_layout(text: str, parallel: Parallel, name: str = "job.yaml") -> str:
    """The text of a job file with this `parallel:`. Existing keys keep their lines, new ones follow them.

    The result is read again: everything but `parallel:` must mean what it did. Raises UserError if it does not, as with
    anchors inside `parallel:` that other keys refer to, or if the text is not a job file.
    """
    if text.count("\r\n") == text.count("\n") > 0:
        return with_layout(text.replace("\r\n", "\n"), parallel, name).replace("\n", "\r\n")
    before, findings = parse_document(text, name)
    if before is None or findings:
        raise UserError(f"cannot edit {name}: {findings[0]}", "correct the file first")
    result = _edited(text, parallel, name)
    after, findings = parse_document(result, name)
    wrong = after is None or bool(findings)
    if after is not None and not wrong:
        wrong = _others(after.data) != _others(before.data) or not _means(after.data, parallel)
    if wrong:
        raise UserError(f"cannot change `parallel:` of {name} without changing the rest of the file", _HINT)
    return result


def _edited(text: str, parallel: Parallel, name: str) -> str:
    try:
        root = root_node(text, name)
    except (SourceError, yaml.YAMLError) as error:
        raise UserError(f"cannot edit {name}: {error}", "correct the file first") from error
    if root is None or root.event.flow_style:
        raise UserError(f"cannot add `parallel:` to {name}: its keys are in braces", _HINT)
    values = _changed_values(parallel)
    node = _child(root, _KEY)
    if node is None:
        block = f"{_KEY}:\n" + "".join(f"  {key}: {value}\n" for key, value in values.items())
        indent = " " * root.children[0].event.start_mark.column
        return (
            text + ("" if text.endswith("\n") else "\n") + "".join(f"{indent}{line}\n" for line in block.splitlines())
        )
    if node.target is not None or not isinstance(node.event, (yaml.MappingStartEvent, yaml.ScalarEvent)):
        raise UserError(f"`parallel:` of {name} is defined elsewhere in the file", _HINT)
    if not node.children:
        return _replaced_whole(text, node, values)
    return _replaced_keys(text, node, values)


def _replaced_whole(text: str, node: YamlNode, values: dict[str, str]) -> str:
    """Write the layout in place of an empty value or an empty mapping."""
    start, end = _span(node)
    if text.startswith("{", start):
        end = text.index("}", start) + 1
    inline = "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"
    return text[:start] + ("" if text[start - 1 : start].isspace() else " ") + inline + text[end:]


def _replaced_keys(text: str, node: YamlNode, values: dict[str, str]) -> str:
    """Replace the values of existing keys, and add those that are missing after the last one."""
    missing = dict(values)
    edits: list[tuple[int, int, str]] = []
    everything = {field: _text(value) for field, value in asdict(Parallel()).items()} | values
    for key, value in zip(node.children[::2], node.children[1::2], strict=True):
        field = str(getattr(key.resolved.event, "value", ""))
        missing.pop(field, None)
        if field in everything and isinstance(value.event, (yaml.ScalarEvent, yaml.AliasEvent)):
            start, end = _span(value)
            edits.append((start, end, ("" if text[start - 1 : start].isspace() else " ") + everything[field]))
    if missing:
        last = node.children[-1].event.end_mark.index
        if node.event.flow_style:
            edits.append((last, last, "".join(f", {key}: {value}" for key, value in missing.items())))
        else:
            at = text.find("\n", last)
            at = len(text) if at < 0 else at
            indent = " " * node.children[0].event.start_mark.column
            edits.append((at, at, "".join(f"\n{indent}{key}: {value}" for key, value in missing.items())))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _span(node: YamlNode) -> tuple[int, int]:
    """Where the node's event starts and ends: of a mapping, its opening."""
    event = node.event
    return event.start_mark.index, event.end_mark.index


def _child(mapping: YamlNode, name: str) -> YamlNode | None:
    for key, value in zip(mapping.children[::2], mapping.children[1::2], strict=True):
        if getattr(key.resolved.event, "value", None) == name:
            return value
    return None


def _changed_values(parallel: Parallel) -> dict[str, str]:
    """The fields that differ from the defaults, and always `tp` and `pp`."""
    defaults = asdict(Parallel())
    return {
        field: _text(value)
        for field, value in asdict(parallel).items()
        if value != defaults[field] or field in ("tp", "pp")
    }


def _text(value: object) -> str:
    return "null" if value is None else str(value).lower()


def _others(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != _KEY}


def _means(data: dict[str, Any], parallel: Parallel) -> bool:
    value = data.get(_KEY)
    return isinstance(value, dict) and asdict(Parallel()) | value == asdict(parallel)
