"""Text with placeholders that only the job can fill, and its quoting for bash.

Any value is hostile until quoted. A value of the job file is either plain text, or contains placeholders such as
`${run.dir}` that are only known on the node. Those become variables of the script; everything else is quoted so that
bash passes it on byte for byte.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import NamedTuple


class Var(NamedTuple):
    """A shell variable of the script, expanded in the job."""

    name: str


Part = str | Var
Text = tuple[Part, ...]
"""Adjacent parts: `("out/", Var("HPC_LAUNCH_RUN_DIR"))`."""

RUNTIME = {
    "run.dir": Var("HPC_LAUNCH_RUN_DIR"),
    "run.name": Var("HPC_LAUNCH_RUN_NAME"),
    "attempt.dir": Var("HPC_LAUNCH_ATTEMPT_DIR"),
    "job.id": Var("HPC_LAUNCH_JOB_ID"),
    "stop.file": Var("HPC_LAUNCH_STOP_FILE"),
    "strategy.config": Var("HPC_LAUNCH_STRATEGY_CONFIG"),
}
"""Placeholders that only the job can fill."""

CHECKPOINT = {
    "checkpoint.path": Var("HPC_LAUNCH_RESUME_FROM"),
    "checkpoint.name": Var("HPC_LAUNCH_RESUME_NAME"),
    "checkpoint.step": Var("HPC_LAUNCH_RESUME_STEP"),
}
"""Placeholders for the checkpoint that an attempt resumes from; only valid in `checkpoint.resume`."""

_SHELL_NAME = re.compile(r"shell\.([A-Za-z_][A-Za-z0-9_]*)\Z")
_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_SAFE_WORD = re.compile(r"(?!=)[A-Za-z0-9_@%+=:,./-]+\Z")


class UnknownName(ValueError):
    """`${NAME}` with an unknown name, which is in `name`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def end_of_placeholders(text: str) -> int:
    """Where the last placeholder of a text can end. A search beyond it would look for the end of each `${` in vain."""
    return text.rfind("}") + 1


def interpolate(
    value: str,
    names: Mapping[str, str],
    runtime: Mapping[str, Var] = RUNTIME,
    late: Mapping[str, Text] = {},
) -> Text:
    """Replace each `${NAME}` with its value from `names`, or with a variable if it is in `runtime`. `$${` is a literal
    `${`.

    `${shell.NAME}` is a variable of the job's own shell; names in `late` are replaced with text that may contain
    variables. Raises UnknownName. Nothing else is special: `$HOME` and backticks are plain text.
    """
    parts: list[Part] = []
    at = 0
    for match in _PLACEHOLDER.finditer(value, 0, end_of_placeholders(value)):
        parts.append(value[at : match.start()])
        at = match.end()
        name = match.group(1)
        if name is None:
            parts.append("${")
        elif name in runtime:
            parts.append(runtime[name])
        elif name in names:
            parts.append(names[name])
        elif name in late:
            parts.extend(late[name])
        elif shell := _SHELL_NAME.match(name):
            parts.append(Var(shell[1]))
        else:
            raise UnknownName(name)
    parts.append(value[at:].replace("$${", "${"))
    return join_parts(parts)


def join_parts(parts: list[Part]) -> Text:
    """Merge adjacent plain parts and drop empty ones."""
    result: list[Part] = []
    for part in parts:
        if isinstance(part, Var):
            result.append(part)
        elif result and isinstance(result[-1], str):
            result[-1] += part
        elif part:
            result.append(part)
    return tuple(result)


def plain(text: Text) -> str | None:
    """The text if it contains no variables, else None."""
    if any(isinstance(part, Var) for part in text):
        return None
    return "".join(part for part in text if isinstance(part, str))


def quote(value: Text | str) -> str:
    """Quote `value` as one bash word, whatever it contains.

    Simple words stay unquoted, the rest is in single quotes. If a character is invisible (controls, bidirectional
    marks) or rejected by sbatch (a carriage return), the result is `$'…'` with its UTF-8 bytes.
    """
    parts = (value,) if isinstance(value, str) else value
    words = [f'"${part.name}"' if isinstance(part, Var) else _quote_plain(part) for part in parts]
    return "".join(words) or "''"


def inside_quotes(value: Text) -> str:
    """The same between double quotes of bash; only for text that needs no quotes. Raises ValueError for other text."""
    if any(isinstance(part, str) and not _SAFE_WORD.match(part) for part in value):
        raise ValueError(value)
    return readable(value)


def readable(text: Text) -> str:
    """The text for people, with variables as `$NAME`."""
    return "".join(f"${part.name}" if isinstance(part, Var) else part for part in text)


def here_document(text: Text) -> str:
    """Everything after `<<` of a here-document: the delimiter, quoted unless a variable must be expanded, the text and
    END.

    `text` ends with a newline, and none of its lines is END. In an unquoted here-document, backslash, `$` and backtick
    are special (bash(1), Here Documents).
    """
    if plain(text) is not None:
        return f"'END'\n{plain(text)}END"
    parts = [f"${{{part.name}}}" if isinstance(part, Var) else re.sub(r"[\\$`]", r"\\\g<0>", part) for part in text]
    return f"END\n{''.join(parts)}END"


def _quote_plain(text: str) -> str:
    if not text:
        return "''"
    if _SAFE_WORD.match(text):
        return text
    if text.isprintable() and not text.endswith("\\"):
        return "'" + text.replace("'", "'\\''") + "'"
    return "$'" + "".join(map(_escape, text)) + "'"


def _escape(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character == "\n":
        return "\\n"
    if character == "\t":
        return "\\t"
    if character.isprintable():
        return character
    # Always three octal digits per byte, so that a following digit is not read as part of the escape.
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8"))


_LOOKS_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Printable by Unicode, and shown as blanks: they could push the end of a value off the screen."""


def visible(text: str) -> str:
    """Make `text` safe for a comment or a message: one line without control characters."""
    shown = unicodedata.normalize("NFC", text)
    return "".join(c if c.isprintable() and c not in _LOOKS_BLANK else f"\\u{ord(c):04x}" for c in shown)


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC, DCS etc.: titles, links
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
)


def without_escapes(text: str) -> list[str]:
    """A log line without escape sequences and tabs; what a progress bar wrote over itself becomes several lines."""
    pieces = [piece for piece in re.split(r"[\r\n]+", _ESCAPES.sub("", text)) if piece] or [""]
    return [piece.expandtabs() for piece in pieces]
