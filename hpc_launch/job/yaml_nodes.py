"""Parse YAML text into a tree of nodes with positions and resolved aliases, within size limits.

It is built from the parser's events, because `yaml.compose` recurses in C and crashes on 100,000 brackets.
"""

from __future__ import annotations

from typing import Any

import yaml
from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Place
from hpc_launch.job.shell_text import visible
from hpc_launch.job.yaml_errors import SourceError, place_of

MAX_NODES = 100_000
"""Maximum number of values once aliases are expanded: a few lines of nested aliases can expand to billions."""
MAX_DEPTH = 64

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlNode(Struct):
    """A value or key of the file."""

    event: Any
    """The parser event that starts it."""
    place: Place
    children: list[YamlNode] = []
    """Items of a list; keys and values of a mapping, alternating."""
    target: YamlNode | None = None
    """The node that an alias refers to."""

    @property
    def resolved(self) -> YamlNode:
        """The node itself, or the target of an alias."""
        return self.target or self


def root_node(text: str, name: str) -> YamlNode | None:
    """Root of the single document, or None if there is none.

    Raises SourceError as soon as the file exceeds the limits, and YAMLError.
    """
    documents: list[YamlNode] = []
    anchors: dict[str, YamlNode] = {}
    open_nodes: list[YamlNode] = []
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        place = place_of(event.start_mark, name)
        if isinstance(event, yaml.DocumentStartEvent) and documents:
            raise SourceError(
                FindingCode.NOT_ONE_MAPPING, "a second document starts here", place, "remove the line `---`"
            )
        if isinstance(event, yaml.CollectionEndEvent):
            open_nodes.pop()
        elif isinstance(event, yaml.NodeEvent):
            node = YamlNode(event, place)
            if isinstance(event, yaml.AliasEvent):
                node.target = _target(str(event.anchor), anchors, open_nodes, place)
            elif event.anchor is not None:
                anchors[event.anchor] = node
            (open_nodes[-1].children if open_nodes else documents).append(node)
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append(node)
        if len(open_nodes) > MAX_DEPTH or count > 2 * MAX_NODES:
            raise too_large(place)
    return documents[0] if documents else None


def _target(anchor: str, anchors: dict[str, YamlNode], open_nodes: list[YamlNode], place: Place) -> YamlNode:
    target = anchors.get(anchor)
    if target is None:
        message = f"no anchor `&{visible(anchor)}` is defined before this alias"
        raise SourceError(FindingCode.INVALID_YAML, message, place, "quote text that starts with *")
    if any(target is holder for holder in open_nodes):
        raise SourceError(
            FindingCode.UNSAFE_YAML, f"the alias `*{visible(anchor)}` contains itself", place, "write out the value"
        )
    return target


def too_large(place: Place) -> SourceError:
    """The error for a file that exceeds the limits."""
    message = f"more than {MAX_NODES:,} values or {MAX_DEPTH} levels, with aliases expanded"
    return SourceError(FindingCode.UNSAFE_YAML, message, place, "use fewer aliases, or several files")
