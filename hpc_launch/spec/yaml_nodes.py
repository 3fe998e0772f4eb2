"""YAML text as a tree of nodes with their places, aliases tied to what they stand for, within bounds.

Made from the parser's events, for `yaml.compose` recurses in C and dies of 100,000 brackets.
"""

from __future__ import annotations

from typing import Any

import yaml
from msgspec import Struct

from hpc_launch.base.findings import Place
from hpc_launch.spec.shell_text import visible
from hpc_launch.spec.yaml_errors import SourceFault, place_of

MAX_NODES = 100_000
"""Values in a file once its aliases are written out: a few lines of nested aliases can stand for billions."""
MAX_DEPTH = 64

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlNode(Struct):
    """A value or key as the file has it."""

    event: Any
    """The parser's event that begins it."""
    place: Place
    children: list[YamlNode] = []
    """The items of a list; of a mapping a key and its value, and so on."""
    target: YamlNode | None = None
    """What an alias stands for."""

    @property
    def meant(self) -> YamlNode:
        """The node itself, or what it stands for."""
        return self.target or self


def root_node(text: str, name: str) -> YamlNode | None:
    """The root of the one document, None where there is none.

    Raises SourceFault before the nodes are more or deeper than they may be, and YAMLError.
    """
    documents: list[YamlNode] = []
    anchors: dict[str, YamlNode] = {}
    holders: list[YamlNode] = []
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        place = place_of(event.start_mark, name)
        if isinstance(event, yaml.DocumentStartEvent) and documents:
            raise SourceFault("HL005", "a second document begins here", place, "take the line `---` out")
        if isinstance(event, yaml.CollectionEndEvent):
            holders.pop()
        elif isinstance(event, yaml.NodeEvent):
            node = YamlNode(event, place)
            if isinstance(event, yaml.AliasEvent):
                node.target = _target(str(event.anchor), anchors, holders, place)
            elif event.anchor is not None:
                anchors[event.anchor] = node
            (holders[-1].children if holders else documents).append(node)
            if isinstance(event, yaml.CollectionStartEvent):
                holders.append(node)
        if len(holders) > MAX_DEPTH or count > 2 * MAX_NODES:
            raise too_large(place)
    return documents[0] if documents else None


def _target(anchor: str, anchors: dict[str, YamlNode], holders: list[YamlNode], place: Place) -> YamlNode:
    target = anchors.get(anchor)
    if target is None:
        message = f"no anchor `&{visible(anchor)}` before this alias"
        raise SourceFault("HL002", message, place, "quote a text with *")
    if any(target is holder for holder in holders):
        raise SourceFault("HL006", f"the alias `*{visible(anchor)}` holds itself", place, "write the value out")
    return target


def too_large(place: Place) -> SourceFault:
    """The fault of a file that holds too much."""
    message = f"more than {MAX_NODES:,} values or {MAX_DEPTH} levels, aliases written out"
    return SourceFault("HL006", message, place, "write fewer aliases, or several files")
