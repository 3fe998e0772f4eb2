"""Split the words of a command into its options and the rest, by a table of its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from hpc_launch.from_script.values import Word


class Option(Struct, frozen=True):
    """One option, by its long name without dashes; `value` is None for a flag."""

    name: str
    value: Word | None
    line: int
    known: bool = True


class Split(Struct, frozen=True):
    """The options of a command, and what follows them."""

    options: tuple[Option, ...]
    rest: tuple[Word, ...]

    def last(self, *names: str) -> Word | None:
        """The value of the last of these options."""
        found = [option.value for option in self.options if option.name in names and option.value is not None]
        return found[-1] if found else None

    def has(self, *names: str) -> bool:
        """Whether one of these options is given."""
        return any(option.name in names for option in self.options)


class OptionTable(Struct, frozen=True):
    """The options of a command. Names are written with dashes; `_` and `-` are the same if `underscores`."""

    valued: frozenset[str]
    flags: frozenset[str]
    short: Mapping[str, str]
    underscores: bool = False
    single_dash: bool = False
    """Whether long options may have one dash, as in Open MPI and MPICH."""

    def split(self, words: Sequence[Word]) -> Split:
        """The options before the first word that is not one."""
        options: list[Option] = []
        at = 0
        while at < len(words):
            word = words[at]
            text = word.text
            if text == "--":
                at += 1
                break
            if not text.startswith("-") or text == "-":
                break
            at += 1
            if text.startswith("--") or (self.single_dash and len(text) > 2):
                name, equals, _ = text.lstrip("-").partition("=")
                name = self._full(name.replace("_", "-") if self.underscores else name)
                attached = word.after(len(text) - len(text.partition("=")[2])) if equals else None
            else:
                name = self.short.get(text[1], text[1])
                attached = word.after(3 if text[2:3] == "=" else 2) if len(text) > 2 else None
                if attached is not None and name in self.flags:
                    options.append(Option(name, None, word.line))
                    options += [Option(self.short.get(c, c), None, word.line) for c in text[2:]]
                    continue
            if attached is None and name in self.valued and at < len(words):
                attached = words[at]
                at += 1
            known = name in self.valued or name in self.flags
            options.append(Option(name, attached, word.line, known))
        return Split(tuple(options), tuple(words[at:]))

    def _full(self, name: str) -> str:
        """The whole name: unambiguous beginnings are accepted (getopt_long(3), and Python's argparse)."""
        if name in self.valued or name in self.flags or len(name) < 3:
            return name
        found = [known for known in (*self.valued, *self.flags) if known.startswith(name)]
        return found[0] if len(found) == 1 else name
