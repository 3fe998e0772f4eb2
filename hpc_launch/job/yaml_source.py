"""Read YAML with the position of every value and without YAML's surprises: a value means what it looks like.

`yaml.safe_load` reads `24:00:00` as 86400, `0123` as 83 and `no` as false, and silently drops the first of two equal
keys. `document.scalar` defines the meaning of each spelling. Nodes are built from the parser's events, because
`yaml.compose` recurses in C and crashes on 100,000 brackets.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.files import FileAccess, access_to, open_regular
from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.job.document import NULL, Document, KeyPath, scalar
from hpc_launch.job.shell_text import visible

MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 100_000
"""Maximum number of values once aliases are expanded: a few lines of nested aliases can expand to billions."""
MAX_DEPTH = 64

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What YAML forbids, and NEL, LS and PS: line breaks in YAML 1.1, but not in 1.2 or in editors.
# Two patterns, because the second takes 4 ms to compile and most files are plain ASCII.
_FORBIDDEN_ASCII = "[^\t\n\r\x20-\x7e]"
_FORBIDDEN = "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_UNUSABLE = "[\0\ud800-\udfff]"
_PLAIN_TAGS = {
    yaml.ScalarEvent: ("tag:yaml.org,2002:str", "!"),
    yaml.MappingStartEvent: ("tag:yaml.org,2002:map", "!"),
    yaml.SequenceStartEvent: ("tag:yaml.org,2002:seq", "!"),
}
_EQUALLY = "indent all keys of a mapping equally, and quote "
_CLOSE = "close the bracket or brace, or add the missing "
_HINTS = {
    # Part of a message of libyaml or PyYAML, and its most common cause.
    "mapping values are not allowed": f"{_EQUALLY}text that contains `: `",
    "escape": "in double quotes, a backslash starts an escape; use single quotes for literal text",
    "unexpected end of stream": "close the quote",
    "cannot start any token": "quote text that starts with %, @ or `",
    "could not find expected ':'": "write `: ` after each key, and indent all lines of a multi-line text equally",
    "did not find expected key": f"{_EQUALLY}the whole text if it contains quotes",
    "expected <block end>": f"{_EQUALLY}the whole text if it contains quotes",
    "expected node content": f"{_CLOSE}value",
    "expected ',' or": f"{_CLOSE}comma",
    "flow": f"{_CLOSE}comma",
    "alphabetic or numeric": "quote text that starts with * or &",
}
_DEFAULT_HINT = f"write `key: value` lines, {_EQUALLY}special text"


class SourceError(Exception):
    """An error after which the file's meaning is unknown."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.findings = [finding]


def _error(code: FindingCode, message: str, place: Place, hint: str) -> SourceError:
    return SourceError(Finding(code, message, place, hint))


def read_document(path: str | os.PathLike[str]) -> tuple[Document | None, list[Finding]]:
    """Read a YAML file like `parse_document`. HL001 if the file cannot be read, HL007 if it is not UTF-8."""
    name = os.fspath(path)
    try:
        text, opened = _read(name)
    except SourceError as error:
        return None, error.findings
    document, findings = parse_document(text, name)
    if document is None and (text.startswith("#!") or re.search(r"^#SBATCH\s", text, re.MULTILINE)):
        hint = f"`hpc-launch init --from {name}` writes a job file from a script"
        findings = [replace(findings[0], message="the file is a script, not a job file", hint=hint)]
    return (None if document is None else replace(document, opened=opened)), findings


def _read(name: str) -> tuple[str, FileAccess]:
    """The text of a file, and who can change it. Raises SourceError."""
    place = Place(name)
    try:
        mode = os.stat(name).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a pipe without a writer would block forever
            message, hint = "not a regular file", "save the content to a file first"
            raise _error(FindingCode.UNREADABLE_FILE, message, place, hint)
        with open_regular(name) as stream:
            opened, content = access_to(stream.fileno()), stream.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        message, hint = f"cannot read the file: {reason}", "check its path and permissions"
        raise _error(FindingCode.UNREADABLE_FILE, message, place, hint) from error
    if len(content) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES >> 20} MiB"
        raise _error(FindingCode.UNREADABLE_FILE, message, place, "check that this is a YAML file")
    try:
        return content.decode("utf-8-sig"), opened
    except UnicodeDecodeError as error:
        place = _place_after(content[: error.start].decode("utf-8", "replace"), name)
        message = f"the byte 0x{content[error.start]:02x} is not valid UTF-8"
        raise _error(FindingCode.INVALID_CHARACTER, message, place, "save the file as UTF-8") from error


def parse_document(text: str, name: str) -> tuple[Document | None, list[Finding]]:
    """Parse YAML text; `name` is the file of all positions.

    The document is None if its meaning is unclear (HL002 syntax, HL004 tab, HL005 not a single mapping, HL006 alias or
    size, HL007 control character). With HL003 (duplicate key; the first one counts), HL006 for a tag or HL007 inside
    quotes, the document is returned so that the caller can look for more errors, but must not be used.
    """
    builder = _Builder(text)
    try:
        root = _root_node(text, name)
        event = root.event if root else None
        if root is None or (isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value in NULL):
            place = Place(name, 1, 1)
            raise _error(FindingCode.NOT_ONE_MAPPING, "the file is empty", place, "write `key: value` lines")
        if not isinstance(event, yaml.MappingStartEvent):
            kind = "a list" if isinstance(event, yaml.SequenceStartEvent) else "text"
            hint = "write `key: value` lines, with a space after the colon"
            raise _error(FindingCode.NOT_ONE_MAPPING, f"the file contains {kind} instead of keys", root.place, hint)
        builder.result.data.update(builder.value(root, ()))
    except SourceError as error:
        return None, error.findings
    return builder.result, builder.findings


def parse_list(text: str, name: str) -> tuple[list[Any], list[Finding]]:
    """Parse YAML text that contains a list, within the same limits. The list is empty if there are findings."""
    builder = _Builder(text)
    try:
        root = _root_node(text, name)
        items = [] if root is None else builder.value(root, ())
        if not isinstance(items, list):
            message, hint = "the file does not contain a list", "start each entry with `- `"
            raise _error(FindingCode.NOT_ONE_MAPPING, message, Place(name, 1, 1), hint)
    except SourceError as error:
        return [], error.findings
    return ([] if builder.findings else items), builder.findings


def _place_of(mark: Any, name: str) -> Place:
    return Place(name, mark.line + 1, mark.column + 1)


def _place_after(before: str, name: str) -> Place:
    """Place of the character that follows `before`."""
    return Place(name, before.count("\n") + 1, len(before) - before.rfind("\n"))


def _check_characters(text: str, name: str) -> None:
    """HL007 for the first character that YAML does not allow."""
    match = re.search(_FORBIDDEN_ASCII if text.isascii() else _FORBIDDEN, text)
    if match is not None:
        message = f"the character U+{ord(match.group()):04X} is not allowed in a YAML file"
        hint = 'write it as an escape sequence in double quotes, such as "\\u2028"'
        raise _error(FindingCode.INVALID_CHARACTER, message, _place_after(text[: match.start()], name), hint)


def _syntax_error(error: yaml.YAMLError, text: str, name: str) -> SourceError:
    """A parser error, with its position and a hint for common causes."""
    context = getattr(error, "context_mark", None)
    mark = getattr(error, "problem_mark", None) or context
    if mark is None:
        return _error(FindingCode.INVALID_YAML, f"invalid YAML: {error}", Place(name), _DEFAULT_HINT)
    place, lines = _place_of(mark, name), text.split("\n")
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent and mark.column <= len(indent):
        others = sum(1 for other in lines if other.startswith("\t")) - line.startswith("\t")
        hint = "use spaces" + (f"; {others} other lines also start with a tab" if others else "")
        place = Place(name, mark.line + 1, indent.index("\t") + 1)
        return _error(FindingCode.TAB, "tab in the indentation", place, hint)
    if line[mark.column : mark.column + 1] == "\t":
        return _error(FindingCode.TAB, "tab where only a space is allowed", place, "use spaces")
    problem = " ".join(part for part in (getattr(error, "problem", ""), getattr(error, "context", "")) if part)
    if "invalid Unicode character escape" in problem:
        message = "incomplete character: an escape between \\uD800 and \\uDFFF"
        hint = "write the character itself, or its full code point, as in \\U0001F600"
        return _error(FindingCode.INVALID_CHARACTER, message, place, hint)
    hint = next((hint for part, hint in _HINTS.items() if part in problem), _DEFAULT_HINT)
    if re.search(r"[:,\[{]\s*[^\s\"',]*\$\{", line):
        hint = 'quote text that contains `${`, such as "${job.id}": in a flow mapping, { starts another one'
    if context is not None and context.line != mark.line and "block" not in problem:
        problem += f" that started in line {context.line + 1}"
    return _error(FindingCode.INVALID_YAML, f"invalid YAML: {problem}", place, hint)


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


def _root_node(text: str, name: str) -> YamlNode | None:
    """Root of the single document, or None if there is none. Raises SourceError as soon as the file exceeds limits."""
    documents: list[YamlNode] = []
    anchors: dict[str, YamlNode] = {}
    open_nodes: list[YamlNode] = []
    _check_characters(text, name)
    try:
        for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
            place = _place_of(event.start_mark, name)
            if isinstance(event, yaml.DocumentStartEvent) and documents:
                message = "a second document starts here"
                raise _error(FindingCode.NOT_ONE_MAPPING, message, place, "remove the line `---`")
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
                raise _too_large(place)
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, name) from error
    return documents[0] if documents else None


def _target(anchor: str, anchors: dict[str, YamlNode], open_nodes: list[YamlNode], place: Place) -> YamlNode:
    target = anchors.get(anchor)
    if target is None:
        message = f"no anchor `&{visible(anchor)}` is defined before this alias"
        raise _error(FindingCode.INVALID_YAML, message, place, "quote text that starts with *")
    if any(target is holder for holder in open_nodes):
        message = f"the alias `*{visible(anchor)}` contains itself"
        raise _error(FindingCode.UNSAFE_YAML, message, place, "write out the value")
    return target


def _too_large(place: Place) -> SourceError:
    message = f"more than {MAX_NODES:,} values or {MAX_DEPTH} levels, with aliases expanded"
    return _error(FindingCode.UNSAFE_YAML, message, place, "use fewer aliases, or several files")


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
            raise _too_large(node.place)
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
        """Build a mapping. Of equal keys the first one counts."""
        into: dict[str, Any] = {}
        for key_node, child in zip(node.children[::2], node.children[1::2], strict=True):
            event = key_node.resolved.event
            if not isinstance(event, yaml.ScalarEvent):
                self.count(key_node.place)
                hint = "quote text that starts with [ or {"
                self.report(FindingCode.INVALID_YAML, "a key must be plain text", key_node, hint)
                continue
            key = self.scalar_text(key_node)
            key_path = (*path, key)
            if key == "<<" and event.implicit[0]:
                hint = "write out the keys, or use the alias for the whole value"
                self.report(FindingCode.UNSAFE_YAML, "`<<` does not merge mappings here", key_node, hint)
            elif key not in into:
                self.result.key_places[key_path] = key_node.place
                into[key] = self.value(child, key_path)
            else:
                self.count(key_node.place)
                first = self.result.key_places[key_path].line
                message = f"duplicate key `{visible(key)}`, first used in line {first}"
                self.report(FindingCode.DUPLICATE_KEY, message, key_node, "remove one of the two")
        return into

    def count(self, place: Place) -> None:
        """Count a value that was built or skipped, which limits the work that a file can cause."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _too_large(place)

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
