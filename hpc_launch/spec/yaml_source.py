"""YAML with the place of every value, and without YAML's traps: a value is what a reader of the file takes it for.

`yaml.safe_load` takes `24:00:00` for 86400, `0123` for 83 and `no` for false, and drops the first of two equal keys
without a word. What a spelling means here is in `scalars`.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any

import yaml

from hpc_launch.base.findings import Finding, Place
from hpc_launch.spec.document import Document, Path
from hpc_launch.spec.scalars import NULL, scalar
from hpc_launch.spec.shell_text import visible
from hpc_launch.spec.yaml_errors import SourceFault, forbidden_characters, place_behind, syntax_fault
from hpc_launch.spec.yaml_nodes import MAX_DEPTH, MAX_NODES, YamlNode, root_node, too_large

MAX_BYTES = 4 * 1024 * 1024

_UNUSABLE = "[\0\ud800-\udfff]"
_PLAIN_TAGS = {
    yaml.ScalarEvent: ("tag:yaml.org,2002:str", "!"),
    yaml.MappingStartEvent: ("tag:yaml.org,2002:map", "!"),
    yaml.SequenceStartEvent: ("tag:yaml.org,2002:seq", "!"),
}


def read_document(path: str | os.PathLike[str]) -> tuple[Document | None, list[Finding]]:
    """Read a YAML file. See `parse_document`; HL001 when the file cannot be read, HL007 when it is not UTF-8."""
    name = os.fspath(path)
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            # A pipe that nobody writes to would be waited for, for ever.
            return None, [Finding("HL001", "this is not a regular file", Place(name), "save it as a file first")]
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return None, [Finding("HL001", f"cannot read the file: {reason}", Place(name), "check its path and rights")]
    if len(content) > MAX_BYTES:
        limit = MAX_BYTES // 1024 // 1024
        return None, [Finding("HL001", f"the file is larger than {limit} MiB", Place(name), "name a YAML file")]
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        message = f"the byte 0x{content[error.start]:02x} is not UTF-8"
        return None, [Finding("HL007", message, place_behind(before, name), "save the file in the encoding UTF-8")]
    return parse_document(text, name)


def parse_document(text: str, name: str) -> tuple[Document | None, list[Finding]]:
    """Parse YAML text; `name` is the file of all places.

    The document is None where there is no telling what was meant (HL002 syntax, HL004 tab, HL005 not one mapping,
    HL006 alias or size, HL007 control character). With HL003 (doubled key; the first counts), HL006 for a tag or
    HL007 inside a quoted text it is there, so that the caller can look for more faults, yet must not be used.
    """
    findings = forbidden_characters(text, name)
    if findings:
        return None, findings
    try:
        root = _mapping_root(root_node(text, name), name)
        builder = _Builder(text)
        builder.result.data.update(builder.value(root, ()))
    except SourceFault as fault:
        return None, [fault.finding]
    except yaml.YAMLError as error:
        return None, [syntax_fault(error, text, name)]
    return builder.result, builder.findings


def parse_list(text: str, name: str) -> tuple[list[Any], list[Finding]]:
    """Parse YAML text that holds a list, under the same limits; nothing of it, with findings, where it has a fault."""
    findings = forbidden_characters(text, name)
    if findings:
        return [], findings
    builder = _Builder(text)
    try:
        root = root_node(text, name)
        items = None if root is None else builder.value(root, ())
    except SourceFault as fault:
        return [], [fault.finding]
    except yaml.YAMLError as error:
        return [], [syntax_fault(error, text, name)]
    if items is not None and not isinstance(items, list):
        return [], [Finding("HL005", "the file holds no list", Place(name, 1, 1), "begin each entry with `- `")]
    return ([] if builder.findings else items or []), builder.findings


def _mapping_root(root: YamlNode | None, name: str) -> YamlNode:
    event = root.event if root else None
    if root is None or (isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value in NULL):
        raise SourceFault("HL005", "the file is empty", Place(name, 1, 1), "write `key: value` lines")
    if not isinstance(event, yaml.MappingStartEvent):
        kind = "a list" if isinstance(event, yaml.SequenceStartEvent) else "a text"
        hint = "write `key: value` lines, with a space behind the colon"
        raise SourceFault("HL005", f"the file holds {kind} where keys belong", root.place, hint)
    return root


class _Builder:
    """Data and tables from nodes, and the faults that leave a document to look at."""

    def __init__(self, text: str) -> None:
        self.result = Document({}, text=text)
        self.findings: list[Finding] = []
        self.nodes = 0

    def value(self, node: YamlNode, path: Path) -> Any:
        """The value of `node`, entered into the tables under `path`."""
        self.count(node.place)
        if len(path) > MAX_DEPTH:
            raise too_large(node.place)
        if node.target is not None:
            value = self.value(node.target, path)
            self.result.places[path] = node.place
            return value
        event = node.event
        if event.tag is not None and event.tag not in _PLAIN_TAGS[type(event)]:
            message = f"the tag `{visible(event.tag)}` is not allowed"
            self.fault("HL006", message, node, "take it out; quotes make a text")
        self.result.places[path] = node.place
        if isinstance(event, yaml.ScalarEvent):
            text = self.checked(node)
            self.result.written[path] = text
            return scalar(text) if event.implicit[0] and event.tag is None else text
        if isinstance(event, yaml.SequenceStartEvent):
            return [self.value(child, (*path, at)) for at, child in enumerate(node.children)]
        return self.mapping(node, path)

    def mapping(self, node: YamlNode, path: Path) -> dict[str, Any]:
        """Of equal keys the first counts; `<<: *anchor` and `<<: [*one, *two]` give what is missing.

        A stack, not a recursion: a file may chain thousands of merges.
        """
        into: dict[str, Any] = {}
        merges = self.pairs(node, path, into, merging=False)[::-1]
        while merges:
            source = merges.pop()
            self.count(source.place)
            if isinstance(source.meant.event, yaml.MappingStartEvent):
                merges += self.pairs(source.meant, path, into, merging=True)[::-1]
            elif isinstance(source.meant.event, yaml.SequenceStartEvent):
                merges += source.meant.children[::-1]
            else:
                self.fault("HL006", "`<<` takes the alias of a mapping", source, "write `<<: *NAME`")
        return into

    def pairs(self, node: YamlNode, path: Path, into: dict[str, Any], *, merging: bool) -> list[YamlNode]:
        """Enter the keys and values of a mapping `into` the data. Returns the values of `<<`."""
        merges: list[YamlNode] = []
        for key_node, child in zip(node.children[::2], node.children[1::2], strict=True):
            event = key_node.meant.event
            if not isinstance(event, yaml.ScalarEvent):
                self.count(key_node.place)
                self.fault("HL002", "a key must be a plain text", key_node, "quote a text that begins with [ or {")
                continue
            key = self.checked(key_node)
            here = (*path, key)
            if key == "<<" and event.implicit[0]:
                merges.append(child)
            elif key not in into:
                self.result.key_places[here] = key_node.place
                into[key] = self.value(child, here)
            else:
                self.count(key_node.place)
                if not merging:
                    first = self.result.key_places[here].line
                    message = f"the key `{visible(key)}` is there twice, first in line {first}"
                    self.fault("HL003", message, key_node, "keep one of the two")
        return merges

    def count(self, place: Place) -> None:
        """One more value was built or skipped: the work that a file can cause has an end."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise too_large(place)

    def checked(self, node: YamlNode) -> str:
        """The text of a scalar, with a finding where it holds what no argument, variable or file name can hold."""
        text: str = node.meant.event.value
        match = None if text.isprintable() else re.search(_UNUSABLE, text)
        if match:
            message = f"a text with U+{ord(match.group()):04X} in it, which cannot be handed to a program"
            self.fault("HL007", message, node, "take the character out")
        return text

    def fault(self, code: str, message: str, node: YamlNode, hint: str) -> None:
        self.findings.append(Finding(code, message, node.place, hint))
