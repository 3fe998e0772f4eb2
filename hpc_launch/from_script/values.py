"""Values of shell words, as far as the script's text decides them: text for the job file, or unknown."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Use = Literal["master", "port", "rank", "hosts", "array", "parameter", "secret"]
"""What a value stands for besides its text: the first host, a port, a process's own rank, the node list, the index in
a job array, an argument of the script, a secret that the job reads from its environment."""


class Value(Struct, frozen=True):
    """A value in the job file's notation. One that is not known keeps the script's own text, which nothing runs."""

    text: str
    known: bool = True
    uses: frozenset[str] = frozenset()

    def __add__(self, other: Value) -> Value:
        return Value(self.text + other.text, self.known and other.known, self.uses | other.uses)


MASTER = Value("${shell.MASTER_ADDR}", True, frozenset({"master"}))
"""The first host, as the rendezvous of the new job has it."""


class ListValue(Struct, frozen=True):
    """An array. Of one with `count` alone, only the number of items is known; None: not even that."""

    items: tuple[Value, ...] = ()
    count: int | None = None
    uses: frozenset[str] = frozenset()


class Word(Struct, frozen=True):
    """One word of a command, with its line."""

    value: Value
    line: int
    raw: str = ""

    @property
    def text(self) -> str:
        """The word's text in the job file's notation."""
        return self.value.text

    def after(self, start: int) -> Word:
        """The rest of the word, from a position on."""
        return self.with_text(self.text[start:])

    def with_text(self, text: str) -> Word:
        """The word with another text."""
        return replace(self, value=replace(self.value, text=text))

    def number(self) -> int | None:
        """The word as a number, if it is one."""
        return int(self.text) if self.value.known and self.text.isdecimal() and len(self.text) < 10 else None


def literal(text: str) -> Value:
    """Text as the script has it: `${` is not special there once quoted."""
    return Value(text.replace("${", "$${"))


def unknown(text: str, *uses: str) -> Value:
    """A part of the script that only its run would know, shown as it is."""
    return Value(text.replace("${", "$${"), False, frozenset(uses))
