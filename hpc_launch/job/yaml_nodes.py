"""Parse YAML text into a tree of nodes with positions and resolved aliases, within size limits; its syntax errors.

It is built from the parser's events, because `yaml.compose` recurses in C and crashes on 100,000 brackets."""

from __future__ import annotations

import re
from typing import Any

import yaml
from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.shell_text import visible

# What YAML forbids, and NEL, LS and PS: line breaks in YAML 1.1, but not in 1.2 or in editors.
# Two patterns, because the second takes 4 ms to compile and most files are plain ASCII.
_FORBIDDEN_ASCII = "[^\t\n\r\x20-\x7e]"
_FORBIDDEN = "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_MAX_FORBIDDEN = 20
_HINTS = (
    # Part of a message of libyaml or PyYAML, and its most common cause.
    ("mapping values are not allowed", "quote text that contains `: `, and indent all keys of a mapping equally"),
    ("escape", "in double quotes, a backslash starts an escape; use single quotes for literal text"),
    ("unexpected end of stream", "close the quote"),
    ("cannot start any token", "quote text that starts with %, @ or `"),
    ("could not find expected ':'", "write `: ` after each key, and indent all lines of a multi-line text equally"),
    (
        "did not find expected key",
        "indent all keys of a mapping equally, and quote the whole text if it contains quotes",
    ),
    ("expected <block end>", "indent all keys of a mapping equally, and quote the whole text if it contains quotes"),
    ("expected ',' or", "close the bracket or brace, or add the missing comma"),
    ("expected node content", "close the bracket or brace, or add the missing value"),
    ("flow", "close the bracket or brace, or add the missing comma"),
    ("alphabetic or numeric", "quote text that starts with * or &"),
)
_DEFAULT_HINT = "write `key: value` lines, indent all keys of a mapping equally, and quote special text"


class SourceError(Exception):
    """An error after which the file's meaning is unknown; `finding` describes it."""

    def __init__(self, code: FindingCode, message: str, place: Place, hint: str) -> None:
        super().__init__(message)
        self.finding = Finding(code, message, place, hint)


def place_of(mark: Any, name: str) -> Place:
    """Place of a parser mark."""
    return Place(name, mark.line + 1, mark.column + 1)


def place_after(before: str, name: str) -> Place:
    """Place of the character that follows `before`."""
    return Place(name, before.count("\n") + 1, len(before) - before.rfind("\n"))


def forbidden_characters(text: str, name: str) -> list[Finding]:
    """HL007 for characters that YAML does not allow: one per line, and only for the first lines."""
    findings: dict[int | None, Finding] = {}
    for match in re.finditer(_FORBIDDEN_ASCII if text.isascii() else _FORBIDDEN, text):
        place = place_after(text[: match.start()], name)
        message = f"the character U+{ord(match.group()):04X} is not allowed in a YAML file"
        hint = 'write it as an escape sequence in double quotes, such as "\\u2028"'
        findings.setdefault(place.line, Finding(FindingCode.INVALID_CHARACTER, message, place, hint))
        if len(findings) == _MAX_FORBIDDEN:
            break
    return list(findings.values())


def syntax_finding(error: yaml.YAMLError, text: str, name: str) -> Finding:
    """Finding for a parser error, with its position and a hint for common causes."""
    context = getattr(error, "context_mark", None)
    mark = getattr(error, "problem_mark", None) or context
    if mark is None:
        return Finding(FindingCode.INVALID_YAML, f"invalid YAML: {error}", Place(name), _DEFAULT_HINT)
    place = place_of(mark, name)
    tab_finding = _tab_finding(mark, text.split("\n"), name)
    if tab_finding is not None:
        return tab_finding
    problem = " ".join(part for part in (getattr(error, "problem", ""), getattr(error, "context", "")) if part)
    if "invalid Unicode character escape" in problem:
        hint = "write the character itself, or its full code point, as in \\U0001F600"
        return Finding(
            FindingCode.INVALID_CHARACTER, "incomplete character: an escape between \\uD800 and \\uDFFF", place, hint
        )
    hint = next((hint for part, hint in _HINTS if part in problem), _DEFAULT_HINT)
    if context is not None and context.line != mark.line and "block" not in problem:
        problem += f" that started in line {context.line + 1}"
    return Finding(FindingCode.INVALID_YAML, f"invalid YAML: {problem}", place, hint)


def _tab_finding(mark: Any, lines: list[str], name: str) -> Finding | None:
    """The finding where a tab is what the parser stumbled over."""
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent and mark.column <= len(indent):
        others = sum(1 for other in lines if other.startswith("\t")) - line.startswith("\t")
        hint = "use spaces" + (f"; {others} other lines also start with a tab" if others else "")
        return Finding(
            FindingCode.TAB, "tab in the indentation", Place(name, mark.line + 1, indent.index("\t") + 1), hint
        )
    if line[mark.column : mark.column + 1] == "\t":
        return Finding(FindingCode.TAB, "tab where only a space is allowed", place_of(mark, name), "use spaces")
    return None


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
