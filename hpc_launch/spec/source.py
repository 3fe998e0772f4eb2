"""YAML with the place of every value, and without YAML's traps: a value is what a reader of the file takes it for.

Read from the parser's events: `safe_load` takes `24:00:00` for 86400, `0123` for 83 and `no` for false, and drops the
first of two equal keys without a word; `compose` recurses in C and dies of 100,000 brackets. What a spelling means
follows YAML 1.2's core schema, less octal and hexadecimal numbers, infinities and NaN, which stay text.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from hpc_launch.base.findings import Finding, Place
from hpc_launch.spec.text import visible

Path = tuple[str | int, ...]
"""Where a value stands in the data: the keys and list positions that lead to it."""

MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 100_000
"""Values in a file once its aliases are written out: a few lines of nested aliases can stand for billions."""
MAX_DEPTH = 64

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# At most 1000 digits: int() refuses texts of 4300, and nothing that long is a number to anybody.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,999})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
# Beside what YAML forbids: NEL, LS and PS, which YAML 1.1 takes for line breaks, 1.2 and every editor do not.
# In two, for the second takes 4 ms to compile and most files are plain ASCII.
_FORBIDDEN_ASCII = "[^\t\n\r\x20-\x7e]"
_FORBIDDEN = "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_UNUSABLE = "[\0\ud800-\udfff]"
_FORBIDDEN_SHOWN = 20
_PLAIN_TAGS = {
    yaml.ScalarEvent: ("tag:yaml.org,2002:str", "!"),
    yaml.MappingStartEvent: ("tag:yaml.org,2002:map", "!"),
    yaml.SequenceStartEvent: ("tag:yaml.org,2002:seq", "!"),
}
_HINTS = (
    # What libyaml or PyYAML's own parser says, in part, and what has most often led to it.
    ("mapping values are not allowed", "quote a text that holds `: `, and give the keys of one mapping one indent"),
    ("escape", "in double quotes a backslash begins an escape; single quotes take everything as it stands"),
    ("unexpected end of stream", "a quote is not closed"),
    ("cannot start any token", "a text that begins with one of % @ ` needs quotes"),
    ("could not find expected ':'", "a key needs `: ` behind it, and a text of several lines the same indent"),
    ("did not find expected key", "keys of one mapping need one indent; quote a text that goes on behind a quote"),
    ("expected <block end>", "keys of one mapping need one indent; quote a text that goes on behind a quote"),
    ("expected ',' or", "a bracket or brace is not closed, or a comma is missing"),
    ("expected node content", "a bracket or brace is not closed, or a value is missing"),
    ("flow", "a bracket or brace is not closed, or a comma is missing"),
    ("alphabetic or numeric", "a text that begins with * or & needs quotes"),
)


@dataclass(frozen=True)
class Document:
    """The data of a file (dict, list, str, int, float, bool, None), with tables by the path of each value.

    `places` has every value, () the whole; `key_places` the key of each value in a mapping, by the value's path;
    `written` the text of each scalar as the file has it, so `1.10` and not 1.1 (a quoted text without its quotes).
    What an alias stands for has the places of its anchor, save that the value itself is placed at the alias.
    """

    data: dict[str, Any]
    places: dict[Path, Place] = field(default_factory=dict)
    key_places: dict[Path, Place] = field(default_factory=dict)
    written: dict[Path, str] = field(default_factory=dict)
    text: str = ""
    """The file as it was read."""


def read_document(path: str | os.PathLike[str]) -> tuple[Document | None, list[Finding]]:
    """Read a YAML file. See `parse_document`; HL001 when the file cannot be read, HL007 when it is not UTF-8."""
    name = os.fspath(path)
    try:
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
        return None, [Finding("HL007", message, _place_at(before, name), "save the file in the encoding UTF-8")]
    return parse_document(text, name)


def parse_document(text: str, name: str) -> tuple[Document | None, list[Finding]]:
    """Parse YAML text; `name` is the file of all places.

    The document is None where there is no telling what was meant (HL002 syntax, HL004 tab, HL005 not one mapping,
    HL006 alias or size, HL007 control character). With HL003 (doubled key; the first counts), HL006 for a tag or
    HL007 inside a quoted text it is there, so that the caller can look for more faults, yet must not be used.
    """
    findings = _forbidden(text, name)
    if findings:
        return None, findings
    try:
        events, targets = _scan(text, name)
        builder = _Builder(name, events, targets)
        return replace(builder.document(), text=text), builder.findings
    except _Fault as fault:
        return None, [fault.finding]
    except yaml.YAMLError as error:
        return None, [_syntax_fault(error, text, name)]


def scalar(text: str) -> str | int | float | bool | None:
    """What an unquoted YAML scalar stands for; the same reading for `--set KEY=VALUE`."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        # A commit's abbreviation such as 12e4567 is in the form of a number beyond all bounds: it stays text.
        return number if math.isfinite(number) else text
    return text


class _Fault(Exception):
    def __init__(self, code: str, message: str, place: Place, hint: str) -> None:
        super().__init__(message)
        self.finding = Finding(code, message, place, hint)


def _place(mark: Any, name: str) -> Place:
    return Place(name, mark.line + 1, mark.column + 1)


def _place_at(before: str, name: str) -> Place:
    return Place(name, before.count("\n") + 1, len(before) - before.rfind("\n"))


def _forbidden(text: str, name: str) -> list[Finding]:
    findings: dict[int | None, Finding] = {}
    for match in re.finditer(_FORBIDDEN_ASCII if text.isascii() else _FORBIDDEN, text):
        place = _place_at(text[: match.start()], name)
        message = f"the character U+{ord(match.group()):04X} cannot stand in a YAML file"
        hint = 'write it as an escape in double quotes, such as "\\u2028"'
        findings.setdefault(place.line, Finding("HL007", message, place, hint))
        if len(findings) == _FORBIDDEN_SHOWN:
            break
    return list(findings.values())


def _syntax_fault(error: yaml.YAMLError, text: str, name: str) -> Finding:
    """One finding for what the parser says: with the place where it can be mended, and a hint for usual causes."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return Finding("HL002", f"this is not YAML: {error}", Place(name))
    place = _place(mark, name)
    lines = text.split("\n")
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent and mark.column <= len(indent):
        others = sum(1 for other in lines if other.startswith("\t")) - line.startswith("\t")
        hint = "use spaces" + (f"; {others} other lines begin with a tab as well" if others else "")
        return Finding("HL004", "tab in the indentation", Place(name, place.line, indent.index("\t") + 1), hint)
    if line[mark.column : mark.column + 1] == "\t":
        return Finding("HL004", "tab where only a space may stand", place, "use spaces")
    problem = " ".join(part for part in (getattr(error, "problem", ""), getattr(error, "context", "")) if part)
    if "invalid Unicode character escape" in problem:
        hint = "write the character itself, or its whole number as in \\U0001F600"
        return Finding("HL007", "half a character: an escape between \\uD800 and \\uDFFF", place, hint)
    hints = [hint for part, hint in _HINTS if part in problem]
    context = getattr(error, "context_mark", None)
    if context is not None and context.line != mark.line and "block" not in problem:
        problem += f" that began in line {context.line + 1}"
    return Finding("HL002", f"this is not YAML: {problem}", place, hints[0] if hints else None)


def _scan(text: str, name: str) -> tuple[list[Any], dict[int, int]]:
    """The events of the one document, and for each alias the position of the event that it stands for.

    Raises _Fault before the events are more or deeper than they may be, and YAMLError.
    """
    events: list[Any] = []
    targets: dict[int, int] = {}
    anchors: dict[str, int] = {}
    open_at: list[int] = []
    documents = 0
    for event in yaml.parse(text, Loader=_LOADER):
        place = _place(event.start_mark, name)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _Fault("HL005", "a second document begins here", place, "take the line `---` out")
        if isinstance(event, yaml.AliasEvent):
            target = anchors.get(str(event.anchor))
            if target is None:
                raise _Fault(
                    "HL002",
                    f"no anchor `&{visible(str(event.anchor))}` before this alias",
                    place,
                    "quote a text with *",
                )
            if target in open_at:
                raise _Fault(
                    "HL006", f"the alias `*{visible(str(event.anchor))}` holds itself", place, "write the value out"
                )
            targets[len(events)] = target
        elif isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            anchors[event.anchor] = len(events)
        if isinstance(event, yaml.CollectionStartEvent):
            open_at.append(len(events))
        elif isinstance(event, yaml.CollectionEndEvent):
            open_at.pop()
        if len(open_at) > MAX_DEPTH or len(events) > 2 * MAX_NODES:
            raise _too_large(place)
        events.append(event)
    return events, targets


def _too_large(place: Place) -> _Fault:
    message = f"more than {MAX_NODES:,} values or {MAX_DEPTH} levels, aliases written out"
    return _Fault("HL006", message, place, "write fewer aliases, or several files")


class _Builder:
    """Data and tables from events. `at` is the position of the next event; an alias reads its anchor's again."""

    def __init__(self, name: str, events: list[Any], targets: dict[int, int]) -> None:
        self.name = name
        self.events = events
        self.targets = targets
        self.at = 0
        self.nodes = 0
        self.findings: list[Finding] = []
        self.result = Document({})

    def document(self) -> Document:
        starts = [at for at, event in enumerate(self.events) if isinstance(event, yaml.DocumentStartEvent)]
        root = self.events[starts[0] + 1] if starts else None
        if root is None or (isinstance(root, yaml.ScalarEvent) and root.implicit[0] and root.value in _NULL):
            raise _Fault("HL005", "the file is empty", Place(self.name, 1, 1), "write `key: value` lines")
        if not isinstance(root, yaml.MappingStartEvent):
            kind = "a list" if isinstance(root, yaml.SequenceStartEvent) else "a text"
            hint = "write `key: value` lines, with a space behind the colon"
            raise _Fault("HL005", f"the file holds {kind} where keys belong", _place(root.start_mark, self.name), hint)
        self.at = starts[0] + 1
        self.result.data.update(self.value(()))
        return self.result

    def value(self, path: Path) -> Any:
        """The value that begins at `at`, entered into the tables under `path`; `at` is behind it afterwards."""
        event = self.events[self.at]
        place = _place(event.start_mark, self.name)
        self.count(place)
        if len(path) > MAX_DEPTH:
            raise _too_large(place)
        value: Any
        if isinstance(event, yaml.AliasEvent):
            behind = self.at + 1
            self.at = self.targets[self.at]
            value = self.value(path)
            self.at = behind
            self.result.places[path] = place
            return value
        if event.tag is not None and event.tag not in _PLAIN_TAGS[type(event)]:
            hint = "take it out; quotes make a text"
            self.findings.append(Finding("HL006", f"the tag `{visible(event.tag)}` is not allowed", place, hint))
        self.result.places[path] = place
        self.at += 1
        if isinstance(event, yaml.ScalarEvent):
            text = self.checked(event.value, place)
            self.result.written[path] = text
            value = scalar(text) if event.implicit[0] and event.tag is None else text
        elif isinstance(event, yaml.SequenceStartEvent):
            value = []
            while not isinstance(self.events[self.at], yaml.SequenceEndEvent):
                value.append(self.value((*path, len(value))))
            self.at += 1
        else:
            value = {}
            self.pairs(path, value, merging=False)
        return value

    def pairs(self, path: Path, into: dict[str, Any], *, merging: bool) -> None:
        """The keys and values up to the mapping's end. Of equal keys the first counts; `<<` gives what is missing."""
        merges: list[int] = []
        while not isinstance(self.events[self.at], yaml.MappingEndEvent):
            event = self.events[self.at]
            if isinstance(event, yaml.AliasEvent):
                event = self.events[self.targets[self.at]]
            place = _place(self.events[self.at].start_mark, self.name)
            if not isinstance(event, yaml.ScalarEvent):
                hint = "quote a text that begins with [ or {"
                self.findings.append(Finding("HL002", "a key must be a plain text", place, hint))
                self.skip()
                self.skip()
                continue
            self.at += 1
            key = self.checked(event.value, place)
            here = (*path, key)
            if key == "<<" and event.implicit[0]:
                merges.append(self.at)
                self.skip()
            elif key in into:
                if not merging:
                    message = (
                        f"the key `{visible(key)}` is there twice, first in line {self.result.key_places[here].line}"
                    )
                    self.findings.append(Finding("HL003", message, place, "keep one of the two"))
                self.skip()
            else:
                self.result.key_places[here] = place
                into[key] = self.value(here)
        self.at += 1
        behind = self.at
        for at in merges:
            self.merge(path, into, at)
        self.at = behind

    def merge(self, path: Path, into: dict[str, Any], at: int) -> None:
        """Take up `<<: *anchor` or `<<: [*one, *two]` whose value begins at `at`."""
        place = _place(self.events[at].start_mark, self.name)
        self.at = self.targets.get(at, at)
        if isinstance(self.events[self.at], yaml.MappingStartEvent):
            self.at += 1
            self.pairs(path, into, merging=True)
        elif isinstance(self.events[self.at], yaml.SequenceStartEvent):
            item = self.at + 1
            while not isinstance(self.events[item], yaml.SequenceEndEvent):
                self.merge(path, into, item)
                self.at = item
                self.skip()
                item = self.at
        else:
            self.findings.append(Finding("HL006", "`<<` takes the alias of a mapping", place, "write `<<: *NAME`"))

    def skip(self) -> None:
        """Go behind the value that begins at `at`."""
        depth = 0
        while True:
            event = self.events[self.at]
            self.count(_place(event.start_mark, self.name))
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            self.at += 1
            if depth == 0:
                return

    def count(self, place: Place) -> None:
        """One more value was built or skipped: the work that a file can cause has an end."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _too_large(place)

    def checked(self, text: str, place: Place) -> str:
        """`text`, with a finding where it holds what no argument, variable or file name can hold."""
        match = None if text.isprintable() else re.search(_UNUSABLE, text)
        if match:
            message = f"a text with U+{ord(match.group()):04X} in it, which cannot be handed to a program"
            self.findings.append(Finding("HL007", message, place, "take the character out"))
        return text
