"""Hints for keys and values that the job file does not have: words of Slurm and of other launchers (`words.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.installed import read_shipped
from hpc_launch.job.document import KeyPath, flow_yaml, scalar
from hpc_launch.job.type_hints import fields_of, members, nearest

_PAIR = re.compile(r"-*([A-Za-z_][\w.-]*)[= ]([\w./+-]{1,40})(?=\s|$)")
"""The first option or assignment of a text: `--lr 1`, `A=1`."""


class Words(Struct, frozen=True):
    """The tables of `words.yaml`, which describes them."""

    sbatch_keys: dict[str, tuple[str, ...]]
    passed_on: frozenset[str]
    needless: frozenset[str]
    reserved: frozenset[str]
    not_of_sbatch: frozenset[str]
    forms: dict[str, tuple[str, str]]
    also: dict[str, tuple[str, ...]]
    group_hints: dict[str, str]
    answers: dict[str, str]
    values: dict[str, dict[str, str]]


def words() -> Words:
    """The tables."""
    tables: Words = read_shipped(Path(__file__).with_name("words.yaml"), Words)
    return tables


@cache
def answers() -> dict[str, str]:
    """The hint for each word: WORD and VALUE stand for what was written."""
    table, found = words(), dict[str, str]()
    groups = {"passed_on": table.passed_on, "needless": table.needless, **table.also}
    for key, of_sbatch in table.sbatch_keys.items():
        found |= dict.fromkeys(of_sbatch, f"write `{key}`")
    for key, group in groups.items():
        outer, dot, inner = key.partition(".")
        entry = f"{outer}: {{{inner}: VALUE}}" if dot else f"{outer}: VALUE"
        found |= dict.fromkeys(group, table.group_hints.get(key, f"write `{entry}`"))
    return found | table.answers


def unknown_key_hint(path: KeyPath, value: Any, type_: type[Struct], root: type[Struct]) -> str:
    """Hint for the key at `path`, which `type_` does not have, in a file of type `root`."""
    from hpc_launch.job.job import JobSpec  # only for an invalid file; it imports the reader's types

    key, fields = str(path[-1]), fields_of(type_)
    parents = [
        f"`{name}`"
        for name, info in fields.items()
        if any(member.is_struct and key in fields_of(member.kind) for member in members(info.type))
    ]
    if parents:
        return f"move it under {' or '.join(parents)}"
    near = nearest(key, list(fields), 0.85)
    if near is not None:
        return f"did you mean `{near}`?"
    if type_ is not root and key in fields_of(root):
        return answers().get(f"{path[0]}.{key}", "move it to the top level: check the indentation")
    if root is JobSpec and (answer := answer_to(path, value)) is not None:
        return answer
    near = nearest(key, list(fields), 0.7)
    if near is not None:
        return f"did you mean `{near}`?"
    if root is JobSpec and type_ is root:
        return _filled(answers()["*"], key, value)
    return "valid keys: " + ", ".join(fields)


def answer_to(path: KeyPath, value: Any) -> str | None:
    """What to write instead of a word of another program as the key at `path`; None for an unknown word."""
    table, parent = answers(), ".".join(map(str, path[:-1]))
    word = str(path[-1]).lstrip("-").lower().replace("_", "-")
    answer = table.get(f"{parent}.{word}", table.get(f"{parent}.*")) if parent else table.get(word)
    return None if answer is None else _filled(answer, str(path[-1]).lstrip("-"), value)


def _filled(answer: str, word: str, value: Any) -> str:
    """A hint with what was written; an ellipsis for a long value, a list or a mapping."""
    short = isinstance(value, (str, int, float)) and len(str(value)) <= 40
    plain = isinstance(value, str) and value.isidentifier()
    return answer.replace("WORD", word).replace("VALUE", str(value) if plain else flow_yaml(value) if short else "…")


def value_hint(path: KeyPath, value: Any) -> str | None:
    """What to write instead of a value at `path`, as other programs call it."""
    return words().values.get(".".join(map(str, path)), {}).get(str(value).lower().replace("_", "-"))


def correction_hint(path: KeyPath, kinds: set[Any], value: Any) -> str | None:
    """Hint how to write the value at `path` so that it has one of the accepted types."""
    if isinstance(value, str):
        if {int, float} & kinds and isinstance(scalar(value), (int, float)):
            return "remove the quotes"
        if {int, float} & kinds and isinstance(scalar(value.lstrip("0") or "0"), int):
            return "remove the leading zeros"
        if bool in kinds:
            return "write true or false; yes, no, on and off are read as text"
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"write {int(value)}"
    maps = any(isinstance(kind, type) and issubclass(kind, (dict, Struct)) for kind in kinds)
    first = value[0] if isinstance(value, list) and value else value
    if maps and isinstance(first, str) and (pair := _PAIR.match(first)) and list in kinds | {type(value)}:
        return f"write a mapping: `{path[-1]}: {{{pair[1]}: {pair[2]}}}`"
    if list in kinds and isinstance(value, Mapping):
        return f"write a list: [{', '.join(map(str, value))}]"
    if list in kinds and value is not None:
        return "write a list: [one, two]"
    if isinstance(value, str) and maps:
        return "write indented `key: value` lines below it, with a space after the colon"
    return None
