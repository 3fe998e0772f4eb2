"""Faults of a YAML text before it has a meaning: what the parser says in words for people, and forbidden characters."""

from __future__ import annotations

import re
from typing import Any

import yaml

from hpc_launch.base.findings import Finding, Place

# Beside what YAML forbids: NEL, LS and PS, which YAML 1.1 takes for line breaks, 1.2 and every editor do not.
# In two, for the second takes 4 ms to compile and most files are plain ASCII.
_FORBIDDEN_ASCII = "[^\t\n\r\x20-\x7e]"
_FORBIDDEN = "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_FORBIDDEN_SHOWN = 20
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
_OTHERWISE = "write `key: value` lines with one indent for the keys of one mapping, and quote what is not plain text"


class SourceFault(Exception):
    """A fault after which there is no telling what the file means; `finding` says it."""

    def __init__(self, code: str, message: str, place: Place, hint: str) -> None:
        super().__init__(message)
        self.finding = Finding(code, message, place, hint)


def place_of(mark: Any, name: str) -> Place:
    """The place of a mark of the parser's."""
    return Place(name, mark.line + 1, mark.column + 1)


def place_behind(before: str, name: str) -> Place:
    """The place of the character that follows the text `before`."""
    return Place(name, before.count("\n") + 1, len(before) - before.rfind("\n"))


def forbidden_characters(text: str, name: str) -> list[Finding]:
    """HL007 for characters that cannot stand in a YAML file: one a line, and only the first lines."""
    findings: dict[int | None, Finding] = {}
    for match in re.finditer(_FORBIDDEN_ASCII if text.isascii() else _FORBIDDEN, text):
        place = place_behind(text[: match.start()], name)
        message = f"the character U+{ord(match.group()):04X} cannot stand in a YAML file"
        hint = 'write it as an escape in double quotes, such as "\\u2028"'
        findings.setdefault(place.line, Finding("HL007", message, place, hint))
        if len(findings) == _FORBIDDEN_SHOWN:
            break
    return list(findings.values())


def syntax_fault(error: yaml.YAMLError, text: str, name: str) -> Finding:
    """One finding for what the parser says: with the place where it can be mended, and a hint for usual causes."""
    context = getattr(error, "context_mark", None)
    mark = getattr(error, "problem_mark", None) or context
    if mark is None:
        return Finding("HL002", f"this is not YAML: {error}", Place(name), _OTHERWISE)
    place = place_of(mark, name)
    tab = _tab(mark, text.split("\n"), name)
    if tab is not None:
        return tab
    problem = " ".join(part for part in (getattr(error, "problem", ""), getattr(error, "context", "")) if part)
    if "invalid Unicode character escape" in problem:
        hint = "write the character itself, or its whole number as in \\U0001F600"
        return Finding("HL007", "half a character: an escape between \\uD800 and \\uDFFF", place, hint)
    usual = next((hint for part, hint in _HINTS if part in problem), _OTHERWISE)
    if context is not None and context.line != mark.line and "block" not in problem:
        problem += f" that began in line {context.line + 1}"
    return Finding("HL002", f"this is not YAML: {problem}", place, usual)


def _tab(mark: Any, lines: list[str], name: str) -> Finding | None:
    """The finding where a tab is what the parser stumbled over."""
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent and mark.column <= len(indent):
        others = sum(1 for other in lines if other.startswith("\t")) - line.startswith("\t")
        hint = "use spaces" + (f"; {others} other lines begin with a tab as well" if others else "")
        return Finding("HL004", "tab in the indentation", Place(name, mark.line + 1, indent.index("\t") + 1), hint)
    if line[mark.column : mark.column + 1] == "\t":
        return Finding("HL004", "tab where only a space may stand", place_of(mark, name), "use spaces")
    return None
