"""Read YAML with the position of every value and without YAML's surprises: a value means what it looks like.

`yaml.safe_load` reads `24:00:00` as 86400, `0123` as 83 and `no` as false, and silently drops the first of two equal
keys. `scalars` defines the meaning of each spelling.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any

import yaml
from msgspec.structs import replace

from hpc_launch.base.files import access_to, open_regular
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import NULL, Document, KeyPath, scalar
from hpc_launch.job.shell_text import visible
from hpc_launch.job.yaml_nodes import (
    MAX_DEPTH,
    MAX_NODES,
    SourceError,
    YamlNode,
    forbidden_characters,
    place_after,
    root_node,
    syntax_finding,
    too_large,
)

MAX_BYTES = 4 * 1024 * 1024

_UNUSABLE = "[\0\ud800-\udfff]"
_PLAIN_TAGS = {
    yaml.ScalarEvent: ("tag:yaml.org,2002:str", "!"),
    yaml.MappingStartEvent: ("tag:yaml.org,2002:map", "!"),
    yaml.SequenceStartEvent: ("tag:yaml.org,2002:seq", "!"),
}


def read_document(path: str | os.PathLike[str]) -> tuple[Document | None, list[Finding]]:
    """Read a YAML file like `parse_document`. HL001 if the file cannot be read, HL007 if it is not UTF-8."""
    name = os.fspath(path)
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            # Reading a pipe without a writer would block forever.
            return None, [
                Finding(
                    FindingCode.UNREADABLE_FILE, "not a regular file", Place(name), "save the content to a file first"
                )
            ]
        with open_regular(path) as stream:
            opened, content = access_to(stream.fileno()), stream.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return None, [
            Finding(
                FindingCode.UNREADABLE_FILE,
                f"cannot read the file: {reason}",
                Place(name),
                "check its path and permissions",
            )
        ]
    if len(content) > MAX_BYTES:
        limit = MAX_BYTES // 1024 // 1024
        return None, [
            Finding(
                FindingCode.UNREADABLE_FILE,
                f"the file is larger than {limit} MiB",
                Place(name),
                "check that this is a YAML file",
            )
        ]
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        message = f"the byte 0x{content[error.start]:02x} is not valid UTF-8"
        return None, [
            Finding(FindingCode.INVALID_CHARACTER, message, place_after(before, name), "save the file as UTF-8")
        ]
    document, findings = parse_document(text, name)
    return (None if document is None else replace(document, opened=opened)), findings


def parse_document(text: str, name: str) -> tuple[Document | None, list[Finding]]:
    """Parse YAML text; `name` is the file of all positions.

    The document is None if its meaning is unclear (HL002 syntax, HL004 tab, HL005 not a single mapping, HL006 alias or
    size, HL007 control character). With HL003 (duplicate key; the first one counts), HL006 for a tag or HL007 inside
    quotes, the document is returned so that the caller can look for more errors, but must not be used.
    """
    findings = forbidden_characters(text, name)
    if findings:
        return None, findings
    try:
        root = _mapping_root(root_node(text, name), name)
        builder = _Builder(text)
        builder.result.data.update(builder.value(root, ()))
    except SourceError as error:
        return None, [error.finding]
    except yaml.YAMLError as error:
        return None, [syntax_finding(error, text, name)]
    return builder.result, builder.findings


def parse_list(text: str, name: str) -> tuple[list[Any], list[Finding]]:
    """Parse YAML text that contains a list, within the same limits. The list is empty if there are findings."""
    findings = forbidden_characters(text, name)
    if findings:
        return [], findings
    builder = _Builder(text)
    try:
        root = root_node(text, name)
        items = None if root is None else builder.value(root, ())
    except SourceError as error:
        return [], [error.finding]
    except yaml.YAMLError as error:
        return [], [syntax_finding(error, text, name)]
    if items is not None and not isinstance(items, list):
        return [], [
            Finding(
                FindingCode.NOT_ONE_MAPPING,
                "the file does not contain a list",
                Place(name, 1, 1),
                "start each entry with `- `",
            )
        ]
    return ([] if builder.findings else items or []), builder.findings


def _mapping_root(root: YamlNode | None, name: str) -> YamlNode:
    event = root.event if root else None
    if root is None or (isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value in NULL):
        raise SourceError(
            FindingCode.NOT_ONE_MAPPING, "the file is empty", Place(name, 1, 1), "write `key: value` lines"
        )
    if not isinstance(event, yaml.MappingStartEvent):
        kind = "a list" if isinstance(event, yaml.SequenceStartEvent) else "text"
        hint = "write `key: value` lines, with a space after the colon"
        raise SourceError(FindingCode.NOT_ONE_MAPPING, f"the file contains {kind} instead of keys", root.place, hint)
    return root


class _Builder:
    """Builds data and tables from nodes, and collects errors that leave the document readable."""

    def __init__(self, text: str) -> None:
        self.result = Document({}, text=text)
        self.findings: list[Finding] = []
        self.nodes = 0

    def value(self, node: YamlNode, path: KeyPath) -> Any:
        """The value of `node`, recorded in the tables under `path`."""
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
            self.report(FindingCode.UNSAFE_YAML, message, node, "remove it; quote the value to make it text")
        self.result.places[path] = node.place
        if isinstance(event, yaml.ScalarEvent):
            text = self.scalar_text(node)
            self.result.written[path] = text
            return scalar(text) if event.implicit[0] and event.tag is None else text
        if isinstance(event, yaml.SequenceStartEvent):
            return [self.value(child, (*path, at)) for at, child in enumerate(node.children)]
        return self.mapping(node, path)

    def mapping(self, node: YamlNode, path: KeyPath) -> dict[str, Any]:
        """Build a mapping. Of equal keys the first one counts; `<<: *anchor` and `<<: [*one, *two]` add missing keys.

        Uses a stack instead of recursion, because a file may chain thousands of merges.
        """
        into: dict[str, Any] = {}
        merges = self.pairs(node, path, into, merging=False)[::-1]
        while merges:
            source = merges.pop()
            self.count(source.place)
            if isinstance(source.resolved.event, yaml.MappingStartEvent):
                merges += self.pairs(source.resolved, path, into, merging=True)[::-1]
            elif isinstance(source.resolved.event, yaml.SequenceStartEvent):
                merges += source.resolved.children[::-1]
            else:
                self.report(
                    FindingCode.UNSAFE_YAML, "`<<` requires the alias of a mapping", source, "write `<<: *NAME`"
                )
        return into

    def pairs(self, node: YamlNode, path: KeyPath, into: dict[str, Any], *, merging: bool) -> list[YamlNode]:
        """Add the keys and values of a mapping to `into`. Returns the values of `<<`."""
        merges: list[YamlNode] = []
        for key_node, child in zip(node.children[::2], node.children[1::2], strict=True):
            event = key_node.resolved.event
            if not isinstance(event, yaml.ScalarEvent):
                self.count(key_node.place)
                self.report(
                    FindingCode.INVALID_YAML, "a key must be plain text", key_node, "quote text that starts with [ or {"
                )
                continue
            key = self.scalar_text(key_node)
            key_path = (*path, key)
            if key == "<<" and event.implicit[0]:
                merges.append(child)
            elif key not in into:
                self.result.key_places[key_path] = key_node.place
                into[key] = self.value(child, key_path)
            else:
                self.count(key_node.place)
                if not merging:
                    first = self.result.key_places[key_path].line
                    message = f"duplicate key `{visible(key)}`, first used in line {first}"
                    self.report(FindingCode.DUPLICATE_KEY, message, key_node, "remove one of the two")
        return merges

    def count(self, place: Place) -> None:
        """Count a value that was built or skipped, which limits the work that a file can cause."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise too_large(place)

    def scalar_text(self, node: YamlNode) -> str:
        """The text of a scalar. Reports characters that no argument, variable or file name can contain."""
        text: str = node.resolved.event.value
        match = None if text.isprintable() else re.search(_UNUSABLE, text)
        if match:
            message = f"the text contains U+{ord(match.group()):04X}, which cannot be passed to a program"
            self.report(FindingCode.INVALID_CHARACTER, message, node, "remove the character")
        return text

    def report(self, code: FindingCode, message: str, node: YamlNode, hint: str) -> None:
        self.findings.append(Finding(code, message, node.place, hint))
