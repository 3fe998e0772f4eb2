"""Text with holes that only the job can fill, and its quoting for bash: hostile until quoted, whatever it holds.

A value of the job file is either plain, or has parts such as `${run.dir}` that are known on the node alone. Those stay
variables of the script; everything else is written so that bash hands it on byte for byte.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import NamedTuple


class Var(NamedTuple):
    """A variable of the script, expanded in the job."""

    name: str


Part = str | Var
Text = tuple[Part, ...]
"""Parts side by side: `("out/", Var("HPC_LAUNCH_RUN_DIR"))`."""

RUNTIME = {
    "run.dir": Var("HPC_LAUNCH_RUN_DIR"),
    "attempt.dir": Var("HPC_LAUNCH_ATTEMPT_DIR"),
    "job.id": Var("HPC_LAUNCH_JOB_ID"),
    "stop.file": Var("HPC_LAUNCH_STOP_FILE"),
    "strategy.config": Var("HPC_LAUNCH_STRATEGY_CONFIG"),
}
"""What `${…}` may name that only the job knows."""

CHECKPOINT = {
    "checkpoint.path": Var("HPC_LAUNCH_RESUME_FROM"),
    "checkpoint.name": Var("HPC_LAUNCH_RESUME_NAME"),
    "checkpoint.step": Var("HPC_LAUNCH_RESUME_STEP"),
}
"""The same for the checkpoint that an attempt goes on from; under `checkpoint.resume` alone."""

_SHELL = re.compile(r"shell\.([A-Za-z_][A-Za-z0-9_]*)\Z")
_HOLE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_SAFE = re.compile(r"(?!=)[A-Za-z0-9_@%+=:,./-]+\Z")


class UnknownName(ValueError):
    """`${NAME}` with a name that is not known; `name` is that name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def interpolate(
    value: str,
    names: Mapping[str, str],
    runtime: Mapping[str, Var] = RUNTIME,
    late: Mapping[str, Text] = {},
) -> Text:
    """`value` with each `${NAME}` filled from `names` or, one of `runtime`, kept for the job; `$${` is a literal `${`.

    `${shell.NAME}` is a variable of the job's own shell, one of `late` a text with such parts.

    Raises UnknownName. Nothing else is special: `$HOME` and backticks are text like any other.
    """
    parts: list[Part] = []
    at = 0
    for match in _HOLE.finditer(value):
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
        elif shell := _SHELL.match(name):
            parts.append(Var(shell[1]))
        else:
            raise UnknownName(name)
    parts.append(value[at:])
    return joined(parts)


def joined(parts: list[Part]) -> Text:
    """The parts with neighbouring plain ones put together and empty ones dropped."""
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
    """The text itself where it has no variable part, else None."""
    if any(isinstance(part, Var) for part in text):
        return None
    return "".join(part for part in text if isinstance(part, str))


def quote(value: Text | str) -> str:
    """One bash word that stands for `value` whatever it holds.

    Plain words stay bare, the rest goes into single quotes; where a character could not be seen by a reader (controls,
    bidirectional marks) or would be refused by sbatch (a carriage return), the form is `$'…'` with its UTF-8 bytes.
    """
    parts = (value,) if isinstance(value, str) else value
    words = [f'"${part.name}"' if isinstance(part, Var) else _quote_plain(part) for part in parts]
    return "".join(words) or "''"


def here_document(text: Text) -> str:
    """The lines of a here-document after `<<`: its word, quoted unless a variable has to be expanded, to its end.

    `text` ends with a newline, and none of its lines is END. In an unquoted one, backslash, `$` and backtick are
    special (bash(1), Here Documents).
    """
    if plain(text) is not None:
        return f"'END'\n{plain(text)}END"
    parts = [f"${{{part.name}}}" if isinstance(part, Var) else re.sub(r"[\\$`]", r"\\\g<0>", part) for part in text]
    return f"END\n{''.join(parts)}END"


def _quote_plain(text: str) -> str:
    if not text:
        return "''"
    if _SAFE.match(text):
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
    # Three octal digits for each byte: a fixed width, so that no digit after it is taken along.
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8"))


def visible(text: str) -> str:
    """`text` fit for a comment or a message: one line, with nothing that moves a terminal's cursor."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in unicodedata.normalize("NFC", text))
