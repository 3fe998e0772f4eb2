"""Job files whose values try to break out of YAML, of bash and of srun; the same ones for every test.

`hostile_jobs` gives what the training has to see beside the text of the job file that asks for it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

COUNT = 100
LONG = 10_000
LONGEST = 100_000
"""Bytes of the longest value that is not refused (HL205)."""

NASTY = (
    "", " ", ":", "--", "-", "-rf", "--help", "=", "#", "# no comment", "a: b", "- item", "? key", "!tag", "&anchor",
    "*alias", "@at", "`id`", "$(id)", "$HOME", "${HOME}", "$${HOME}", "${run.dir}", "$$", "$", "${", "}", "{a: b}",
    "[1, 2]", "%YAML 1.2", "---", "...", "'", '"', "''", '""', "it's", 'say "no"', "\\", "\\\\", "\\n", "a\\", "\\'",
    "$'x'", '$"x"', "\n", "a\nb", "\n\n", "trailing\n", "\ta\t", "\r", "a\r\nb", "\x01", "\x1b[31mred", "\x7f",
    "*", "?", "[a-z]*", "~", "~root", "!", "!!", "!$", "a;b", "a&&b", "a|b", "a>b", "a<b", "<(id)", "(", ")", "{a,b}",
    "EOF", "<<EOF", "\u202eevil\u2066", "\u200b", "\ufeffbom", "\u2028", "\x85", "\xa0", "żółć", "日本語", "👩‍🚀",
    "e\u0301", "\U0010ffff",
    "\ufffd", "yes", "no", "on", "off", "null", "~", "true", "0123", "1e5", "1_000", "0x1f", "24:00:00", "1.10", ".inf",
    "2001-01-01",
    "<<", "%j", "%s%n", "{{ plan.name }}", "{% raw %}", "{#", "<#", "#SBATCH --nodes=9", "\n#SBATCH --nodes=9\n",
    "a b  c ",
    "key=value", "\\x41\\101\\u0041", "${x:-$(id)}", "$((1+1))", "$[1+1]", "]]", "a\\\nb", "\b\a\v\f", "1", "001",
)  # fmt: skip
_BREAKS_OF_YAML_1_1 = frozenset("\x85\u2028\u2029")
_ALPHABET = "ab 1-:'\"\\$`{}()[]*?~!#%&|;<>=,.\n\r\t\x01\x1b\x7f\u202e\u2028\xe9\u6f22\U0001f600/@^_+"


@dataclass(frozen=True)
class Hostile:
    """A job's arguments and variables as the training has to find them, and the keys of a job file that say so."""

    number: int
    words: list[str]
    env: dict[str, str]
    keys: dict[str, Any]
    style: dict[str, Any]

    def job_file(self, **more: Any) -> str:
        """The text of the job file, with `more` keys in it."""
        name = f"hostile-{self.number:03d}"
        style = dict(self.style)
        quotes = style.pop("quotes")

        class Dumper(yaml.SafeDumper):
            """Writes every text in one style, where YAML 1.2 lets the text stand in it."""

        def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
            style = '"' if set(value) & _BREAKS_OF_YAML_1_1 else quotes
            return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)

        Dumper.add_representer(str, text)
        return str(yaml.dump({"name": name, **more, **self.keys}, Dumper=Dumper, sort_keys=False, **style))


def hostile_jobs(count: int = COUNT, seed: int = 20261121) -> Iterator[Hostile]:
    """Jobs from a seeded generator; each nasty text turns up in some of them as an argument and as a variable."""
    dice = random.Random(seed)
    texts = list(NASTY)
    dice.shuffle(texts)
    for number in range(count):
        # In turn, so that none is left out, and some by chance.
        values = [texts[(number * 5 + offset) % len(texts)] for offset in range(5)] + [
            _text(dice) for _ in range(dice.randint(2, 6))
        ]
        if number == 0:
            values.append("é" * (LONGEST // 2))
        dice.shuffle(values)
        env = {f"HOSTILE_{index}": value for index, value in enumerate(dice.sample(values, len(values)))}
        words, args = (_as_list if number % 2 else _as_mapping)(dice, values)
        keys = {"args": args, "env": {name: _escaped(value) for name, value in env.items()}}
        style = {
            "allow_unicode": dice.random() < 0.5,
            "width": dice.choice([40, 120, 1_000_000]),
            "quotes": dice.choice([None, None, '"', "'", "|"]),
            "default_flow_style": dice.choice([False, False, True]),
        }
        yield Hostile(number, words, env, keys, style)


def _text(dice: random.Random) -> str:
    kind = dice.random()
    if kind < 0.1:
        return "".join(dice.choices(_ALPHABET, k=LONG))
    if kind < 0.4:
        return "".join(dice.choices(NASTY, k=dice.randint(2, 6)))
    if kind < 0.5:
        # Any character that a program's argument can hold.
        return "".join(chr(dice.choice([dice.randint(1, 0x2FF), dice.randint(0x10000, 0x10FFFF)])) for _ in range(20))
    return "".join(dice.choices(_ALPHABET, k=dice.randint(1, 30)))


def _as_list(dice: random.Random, values: list[str]) -> tuple[list[str], Any]:
    return values, [_escaped(value) for value in values]


def _as_mapping(dice: random.Random, values: list[str]) -> tuple[list[str], Any]:
    words: list[str] = []
    args: dict[str, Any] = {}
    rest = list(values)
    while rest:
        key = f"{dice.choice(['lr', '-x', '--', 'ключ', 'a b', 'k=v', chr(39), '$(id)', '*', 'a:b', '#'])}{len(args)}"
        words.append(key if key.startswith("-") else f"--{key}")
        if dice.random() < 0.2:
            args[key] = True
            continue
        taken = [rest.pop() for _ in range(min(dice.choice([1, 1, 3]), len(rest)))]
        words += taken
        args[key] = _escaped(taken[0]) if len(taken) == 1 else [_escaped(value) for value in taken]
    return words, args


def _escaped(value: str) -> str:
    return value.replace("${", "$${")
