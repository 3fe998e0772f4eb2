"""`--set KEY=VALUE`: the topmost layer. VALUE is parsed as YAML, so numbers, lists and null mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import KeyPath
from hpc_launch.job.merge import Layer
from hpc_launch.job.scalars import flow_yaml
from hpc_launch.job.secret_names import SECRET_NAME
from hpc_launch.job.yaml_source import parse_document

_OPEN_MAPPINGS = frozenset({"args", "env", "sbatch"})
"""Keys whose children have user-chosen names: a dot is part of the name."""


def override_layer(sets: Sequence[str], findings: list[Finding]) -> Layer:
    """Build the layer of all `--set` options. Later options override earlier ones."""
    data: dict[str, Any] = {}
    places: dict[KeyPath, Place] = {}
    written: dict[KeyPath, str] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        place = Place(f"--set {key}=…" if SECRET_NAME.search(key) else f"--set {text}")
        if not equals or not key.strip("."):
            message, hint = f"`--set {text}` is not of the form KEY=VALUE", "for example `--set args.lr=0.001`"
            findings.append(Finding(FindingCode.INVALID_SET_OPTION, message, place, hint))
            continue
        path = _split(key)
        document, faults = parse_document(f"value: {value}", str(place))
        if document is None:
            # Treat invalid YAML, such as a bare `:` or `{`, as text.
            document, faults = parse_document(f"value: {flow_yaml(value)}", str(place))
        if document is None:
            findings += faults
            continue
        _put(data, path, document.data["value"])
        for end in range(1, len(path)):
            places[path[:end]] = place
        for value_path, original in document.written.items():
            written[(*path, *value_path[1:])] = original
        for value_path in document.places:
            places[(*path, *value_path[1:])] = place
    return Layer("--set", data, places, places, written)


def _split(key: str) -> tuple[str, ...]:
    first, dot, rest = key.partition(".")
    if dot and first in _OPEN_MAPPINGS:
        return (first, rest)
    return tuple(key.split("."))


def _put(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        child = data.get(key)
        if not isinstance(child, dict):
            child = {}
            data[key] = child
        data = child
    data[path[-1]] = value
