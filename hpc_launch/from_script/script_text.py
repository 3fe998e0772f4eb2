"""The text of a script, whose bytes are hostile, and its syntax tree by tree-sitter's grammar of bash. Nothing is run.

Words of a command have a value as far as the text decides it; options are read by a table. What became of each line:
taken over, unnecessary here, or not understood. No line is dropped, and no secret is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import UsageError
from hpc_launch.job.container import SECRET_NAME

MAX_BYTES = 4 << 20
"""Slurm's default limit of a script (slurm.conf(5), max_script_size)."""
MAX_FOLLOWED = 256 << 10
"""Bytes of a local shell file that a script starts."""
DEEPEST = 100
"""Deeper nesting than people write: `((((…`."""
Node = Any
"""A `tree_sitter.Node`; its packages are imported only when a script is read."""


class ScriptText(Struct, frozen=True):
    """The text of a script, with LF line ends, and remarks on what was changed to read it."""

    text: str
    remarks: tuple[str, ...] = ()


def read_script(path: Path) -> ScriptText:
    """The script's text. Raises UsageError for a file that sbatch would refuse too, or that cannot be read."""
    try:
        if not os.path.isfile(path):
            raise UsageError(f"{path} is not a file", "name an sbatch script")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name an sbatch script") from error
    return decode(data, str(path))


def decode(data: bytes, name: str) -> ScriptText:
    """The text of a script's bytes. Raises UsageError as `read_script` does."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB, Slurm's limit of a script", "name a script")
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise UsageError(f"{name}:{line}: a NUL byte; sbatch refuses such a script", "name a text file in UTF-8")
    text = data.decode("utf-8", "replace")
    found = {
        "the script begins with a byte order mark; sbatch refuses such a script": text.startswith("\ufeff"),
        "the script is not valid UTF-8; the invalid bytes are shown as \ufffd": "\ufffd" in text,
        "the script has DOS line ends; sbatch refuses such a script": "\r" in text,
    }
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return ScriptText(text, tuple(remark for remark, holds in found.items() if holds))


def small_script(path: str) -> str | None:
    """The text of a local shell file, if it is a small one."""
    with suppress(OSError, UsageError):
        if os.path.isfile(path) and os.path.getsize(path) <= MAX_FOLLOWED:
            return read_script(Path(path)).text
    return None


@cache
def _parser() -> Any:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        message = f"reading shell scripts needs tree-sitter and its bash grammar: {error}"
        raise UsageError(message, "install them: pip install tree-sitter tree-sitter-bash") from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: str) -> Node | None:
    """The root node; None if it is nested deeper than scripts are. What bash would refuse has nodes of type ERROR."""
    root = _parser().parse(text.encode("utf-8", "replace")).root_node
    level, depth = [root], 0
    while level:
        level, depth = [child for node in level for child in node.named_children], depth + 1
    return root if depth <= DEEPEST + 1 else None


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
    uses: frozenset[str] = frozenset()
    """What it stands for: `master` (the first host), `port`, `rank` (a process's own), `hosts`, `array` (the index in a
    job array), `parameter` (an argument of the script)."""

    @property
    def why(self) -> str:
        """Why it is not known."""
        reasons = {
            "array": "depends on the index in a job array",
            "rank": "depends on the process: the training finds its rank in RANK and LOCAL_RANK",
            "parameter": "is an argument of the script: write its value",
        }
        return next((reasons[use] for use in reasons if use in self.uses), "is known only in the job: write its value")

    def __add__(self, other: Value) -> Value:
        return Value(self.text + other.text, self.known and other.known, self.uses | other.uses)


MASTER = Value("${shell.MASTER_ADDR}", True, frozenset({"master"}))
"""The first host, as the rendezvous of the new job has it."""


def literal(text: str) -> Value:
    """Text as the script has it: `${` is not special there once quoted."""
    return Value(text.replace("${", "$${"))


def unknown(text: str, *uses: str) -> Value:
    """A part of the script that only its run would know, shown as it is."""
    return Value(text.replace("${", "$${"), False, frozenset(uses))


class Word(Struct, frozen=True):
    """One word of a command, with its line."""

    value: Value
    line: int
    raw: str = ""

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


class Option(Struct, frozen=True):
    """One option, by its long name without dashes; `value` is None for a flag."""

    name: str
    value: Word | None
    line: int
    known: bool = True

    @property
    def text(self) -> str:
        """The text of its value."""
        return self.value.text if self.value is not None else ""


class Split(Struct, frozen=True):
    """The options of a command, and what follows them."""

    options: list[Option]
    rest: list[Word]

    def last(self, *names: str) -> Word | None:
        """The value of the last of these options."""
        return next((one.value for one in reversed(self.options) if one.name in names and one.value is not None), None)

    def number(self, *names: str) -> int | None:
        """The same as a number."""
        word = self.last(*names)
        return word.number() if word is not None else None

    def has(self, *names: str) -> bool:
        """Whether one of these options is given."""
        return any(option.name in names for option in self.options)


class OptionTable:
    """The options of a command, by their names with dashes; `_` is read as a dash.

    Args: valued: names of options with a value. flags: of those without. short: long names of letters. pairs: names of
    options with two words, read as `A=B`. single_dash: whether every option may have one dash, as in Open MPI.
    """

    def __init__(
        self, valued: str, flags: str, short: Mapping[str, str] = {}, pairs: str = "", *, single_dash: bool = False
    ) -> None:
        self.flags, self.pairs = frozenset(flags.split()), frozenset(pairs.split())
        self.valued = frozenset(valued.split()) - self.flags
        self.known = self.valued | self.flags | self.pairs
        self.short = short
        self.single_dash = single_dash

    def split(self, words: Sequence[Word]) -> Split:
        """The options before the first word that is not one."""
        options: list[Option] = []
        left = list(words)
        while left and left[0].text.startswith("-") and left[0].text != "-":
            word = left.pop(0)
            if word.text == "--":
                break
            if word.text.startswith("--") or self.single_dash:
                name, equals, rest = word.text.lstrip("-").partition("=")
                name = self._full(name.replace("_", "-"))
            else:
                name, rest = self.short.get(word.text[1], word.text[1]), word.text[2:].removeprefix("=")
                equals = rest if name not in self.flags else ""
                if rest and name in self.flags:
                    left.insert(0, word.with_text(f"-{rest}"))
            value = word.with_text(rest) if equals else None
            if value is None and name in self.pairs and len(left) > 1:
                first = left.pop(0)
                value = left[0].with_text(f"{first.text}={left.pop(0).text}")
            elif value is None and name in self.valued and left:
                value = left.pop(0)
            options.append(Option(name, value, word.line, name in self.known))
        return Split(options, left)

    def _full(self, name: str) -> str:
        """The whole name: unambiguous beginnings are accepted (getopt_long(3), and Python's argparse)."""
        found = [known for known in self.known if known.startswith(name)]
        return found[0] if len(found) == 1 and len(name) > 2 else name


Outcome = Literal["unnecessary", "taken", "not_understood"]
_RANK = {"unnecessary": 0, "taken": 1, "not_understood": 2}
_SECRET = re.compile(
    r"(\b(?:\w+_)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)=|(?i:--?[\w-]*(?:api[_-]?key|token|password|secret)(?:=|\s+)))"
    r"(\"[^\"]*\"|'[^']*'|[^\s\"';&|]+)"
)
_LOGIN = re.compile(r"((?:wandb\s+login|huggingface-cli\s+login|hf\s+auth\s+login)\b[^;&|]*?)(\s)([A-Za-z0-9_]{16,})")
_CREDENTIAL = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|"
    r"glpat-[\w-]{16,}|xox[abp]-[\w-]{10,}|AKIA[A-Z0-9]{16}|(?<=://)[^\s/:@]+:[^\s/@]+(?=@))"
)
"""What the services themselves mark as a key, and a password in a URL."""
_ASSIGNED = re.compile(r"\b(?P<name>\w*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD))=(?!\$)(?:\"[^\"]*\"|'[^']*'|[^\s\"';&|]+)")


def without_secrets(text: str) -> str:
    """The text, with dots in place of values that look like a password or a key."""
    hidden = _SECRET.sub(lambda found: found[0] if found[2].strip("\"'")[:1] == "$" else f"{found[1]}…", text)
    return _CREDENTIAL.sub("…", _LOGIN.sub(r"\1\2…", hidden))


def take_out(text: str) -> tuple[str, list[str], bool]:
    """A value without secrets, the variables that it reads instead, and whether a value was left out for good."""
    names = [name for name in re.findall(r"(?<!\$)\$\{shell\.(\w+)\}", text) if SECRET_NAME.search(name)]

    def read_variable(found: re.Match[str]) -> str:
        name = found["name"]
        if not SECRET_NAME.search(name):
            return found[0]
        names.append(name)
        return f"{name}=${name}" if " " in text else f"{name}=${{shell.{name}}}"  # with blanks: text of `bash -c`

    kept = _ASSIGNED.sub(read_variable, text)
    hidden = _CREDENTIAL.sub("…", kept)
    return hidden, names, hidden != kept


class LineAccount(Struct, frozen=True):
    """What became of one line. `keys`: where its content is in the job file or the site profile."""

    line: int
    text: str
    outcome: Outcome
    keys: tuple[str, ...]
    why: str


class Note(Struct):
    """What is known of one line so far."""

    outcome: Outcome
    keys: list[str] = []
    reasons: list[str] = []


class Ledger:
    """The accounts of a script while it is read. Every non-blank line ends up with exactly one."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self.notes: dict[int, Note] = {}

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
            note = self.notes.setdefault(line, Note("unnecessary"))
            if _RANK[outcome] > _RANK[note.outcome]:
                note.outcome, note.reasons = outcome, []
            if why and why not in note.reasons and outcome == note.outcome:
                note.reasons.append(why)
            note.keys += [key for key in keys if key not in note.keys]

    def accounts(self) -> tuple[LineAccount, ...]:
        """One account for each line that is not blank, in order."""
        result = []
        nothing = Note("not_understood", reasons=["not read as a shell command"])
        for number, line in enumerate(self._lines, 1):
            if line.strip():
                note = self.notes.get(number, nothing)
                why = without_secrets("; ".join(note.reasons))
                result.append(LineAccount(number, without_secrets(line), note.outcome, tuple(note.keys), why))
        return tuple(result)
