"""The text of a script, whose bytes are hostile, and its syntax tree by tree-sitter's grammar of bash. Nothing is run.

Words of a command have a value as far as the text decides it; options are read by a table. What became of each line:
taken over, unnecessary here, or not understood. No line is dropped, and no secret is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import UsageError
from hpc_launch.base.installed import read_shipped
from hpc_launch.base.patterns import SECRET_VALUE

MAX_BYTES = 4 << 20
"""Slurm's default limit of a script (slurm.conf(5), max_script_size)."""
Node = Any
"""A `tree_sitter.Node`; its packages are imported only when a script is read."""


def read_script(path: Path) -> str:
    """The script's text. Raises UsageError for a file that sbatch would refuse too, or that cannot be read."""
    try:
        if not os.path.isfile(path):
            raise UsageError(f"{path} is not a file", "name an sbatch script")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name an sbatch script") from error
    return decode(data, str(path))


def decode(data: bytes, name: str) -> str:
    """The text of a script's bytes; those that are not UTF-8 become \ufffd. Raises UsageError as `read_script` does."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB, Slurm's limit of a script", "name a script")
    for mark, what in ((b"\0", "a NUL byte"), (b"\r", "a DOS line end"), (b"\xef\xbb\xbf", "a byte order mark")):
        if mark in data and (mark < b"\xef" or data.startswith(mark)):
            line = data[: data.index(mark)].count(b"\n") + 1
            raise UsageError(f"{name}:{line}: {what}; sbatch refuses such a script", "name a text file in UTF-8")
    return data.decode("utf-8", "replace")


def parse(text: str) -> Node:
    """The root node. What bash would refuse has nodes of type ERROR."""
    import tree_sitter
    import tree_sitter_bash

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    return parser.parse(text.encode("utf-8", "replace")).root_node


def text_of(node: Node | None) -> str:
    """The text of a node."""
    return str(node.text.decode("utf-8", "replace")) if node is not None else ""


def lines_of(node: Node) -> range:
    """The numbers of the lines that a node covers, from 1."""
    last = node.end_point[0] + (1 if node.end_point[1] else 0)
    return range(node.start_point[0] + 1, max(last, node.start_point[0] + 1) + 1)


def find_all(node: Node, kind: str) -> Iterator[Node]:
    """Every node of a type, in order."""
    if node.type == kind:
        yield node
    for child in node.named_children:
        yield from find_all(child, kind)


class Value(Struct, frozen=True):
    """A value in the job file's notation. One that is not known keeps the script's own text, which nothing runs."""

    text: str
    known: bool = True
    hosts: bool = False
    """Whether it tells the nodes of the job or the address of one, which the new job finds itself."""

    def __add__(self, other: Value) -> Value:
        return Value(self.text + other.text, self.known and other.known, self.hosts or other.hosts)


NOT_KNOWN = "is known only in the job: write its value"
"""Of a name or a word whose value the text does not decide."""


def literal(text: str) -> Value:
    """Text as the script has it: `${` is not special there once quoted."""
    return Value(text.replace("${", "$${"))


def unknown(text: str, *, hosts: bool = False) -> Value:
    """A part of the script that only its run would know, shown as it is."""
    return Value(text.replace("${", "$${"), False, hosts)


class Word(Struct, frozen=True):
    """One word of a command, with its line."""

    value: Value
    line: int

    @property
    def text(self) -> str:
        """The word's text in the job file's notation."""
        return self.value.text

    def with_text(self, text: str) -> Word:
        """The word with another text."""
        return replace(self, value=replace(self.value, text=text))

    def number(self) -> int | None:
        """The word as a number, if it is one."""
        return int(self.text) if self.value.known and self.text.isdecimal() and len(self.text) < 10 else None


class Split(Struct, frozen=True):
    """The options of a command, each a long name without dashes and its value (empty for a flag), and what follows."""

    options: list[tuple[str, Word]]
    rest: list[Word]

    def last(self, *names: str) -> Word | None:
        """The value of the last of these options."""
        return next((value for name, value in reversed(self.options) if name in names), None)

    def number(self, *names: str) -> int | None:
        """The same as a number."""
        word = self.last(*names)
        return word.number() if word is not None else None


class OptionTable(Struct, frozen=True):
    """How to read the options of a command, by names with dashes; `_` is read as a dash.

    Args: flags: names of options without a value; all others have one. short: long names of letters.
    """

    flags: frozenset[str]
    short: Mapping[str, str] = {}

    def split(self, words: Sequence[Word]) -> Split:
        """The options before the first word that is not one."""
        options: list[tuple[str, Word]] = []
        left = list(words)
        while left and left[0].text.startswith("-") and left[0].text not in {"-", "--"}:
            word = left.pop(0)
            if word.text.startswith("--"):
                name, equals, rest = word.text[2:].partition("=")
                name = name.replace("_", "-")
            else:
                name, rest = self.short.get(word.text[1], word.text[1]), word.text[2:].removeprefix("=")
                equals = rest if name not in self.flags else ""
                if rest and name in self.flags:
                    left.insert(0, word.with_text(f"-{rest}"))
            value = word.with_text(rest if equals else "")
            if not equals and name not in self.flags and left and not re.match(r"--|.*\.py$", left[0].text):
                value = left.pop(0)
            options.append((name, value))
        return Split(options, left[1:] if left and left[0].text == "--" else left)


class OldWords(Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of old_words.yaml, which describes them."""

    commands: dict[str, OptionTable]
    of_step: frozenset[str]
    needless: frozenset[str]
    modules: dict[str, str]
    rendezvous: frozenset[str]
    prints: frozenset[str]


def old_words() -> OldWords:
    """The tables."""
    tables: OldWords = read_shipped(Path(__file__).with_name("old_words.yaml"), OldWords)
    return tables


Outcome = Literal["unnecessary", "taken", "not_understood"]
_RANK = {"unnecessary": 0, "taken": 1, "not_understood": 2}
_QUOTED = r"(\"[^\"]*\"|'[^']*'|[^\s\"';&|]+)"
_ASSIGNED = re.compile(rf"\b((?:\w+_)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD))=(?![\"']?\$){_QUOTED}")
_OPTION = re.compile(rf"((?i:--?[\w-]*(?:api[_-]?key|token|password|secret)(?:=|\s+)))(?![\"']?\$){_QUOTED}")
_LOGIN = re.compile(r"((?:wandb\s+login|huggingface-cli\s+login|hf\s+auth\s+login)\b[^;&|]*?)(\s)([A-Za-z0-9_]{16,})")


def without_secrets(text: str) -> str:
    """The text, with dots in place of values that look like a password or a key."""
    return SECRET_VALUE.sub("…", _LOGIN.sub(r"\1\2…", _OPTION.sub(r"\1…", _ASSIGNED.sub(r"\1=…", text))))


def take_out(text: str) -> tuple[str, list[str]]:
    """A value without secrets, and the secret variables that it reads."""
    names = re.findall(r"(?<!\$)\$\{shell\.(\w*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD))\}", text)
    return SECRET_VALUE.sub("…", _ASSIGNED.sub(r"\1=…", text)), names


class LineAccount(Struct):
    """What became of one line. `keys`: where its content is in the job file or the site profile."""

    line: int
    text: str = ""
    outcome: Outcome = "unnecessary"
    keys: list[str] = []
    why: str = ""


class Ledger:
    """The accounts of a script while it is read. Every non-blank line ends up with exactly one."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self.notes: dict[int, LineAccount] = {}

    def taken(self, lines: Iterable[int], *keys: str, why: str = "") -> None:
        """The lines' content is in these keys."""
        self._note(lines, "taken", why, keys)

    def unnecessary(self, lines: Iterable[int], why: str) -> None:
        """The lines are not needed, for this reason."""
        self._note(lines, "unnecessary", why)

    def not_understood(self, lines: Iterable[int], why: str) -> None:
        """A person has to look at the lines."""
        self._note(lines, "not_understood", why)

    def _note(self, lines: Iterable[int], outcome: Outcome, why: str, keys: Iterable[str] = ()) -> None:
        """Several statements of a line share its account: the one that needs most attention decides."""
        for line in lines:
            note = self.notes.setdefault(line, LineAccount(line))
            if _RANK[outcome] > _RANK[note.outcome]:
                note.outcome, note.why = outcome, ""
            if outcome == note.outcome and without_secrets(why) not in note.why:
                note.why = "; ".join(filter(None, (note.why, without_secrets(why))))
            note.keys += [key for key in keys if key not in note.keys]

    def accounts(self) -> tuple[LineAccount, ...]:
        """One account for each line that is not blank, in order."""
        nothing = LineAccount(0, outcome="not_understood", why="not read as a shell command")
        return tuple(
            replace(self.notes.get(number, nothing), line=number, text=without_secrets(line))
            for number, line in enumerate(self._lines, 1)
            if line.strip()
        )
