"""The reference of docs/reference/python.md: signatures and docstrings of the Python API."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import hpc_launch as hl

MARK = "<!-- From the docstrings in hpc_launch/api. Edit those and run `make docs`. -->"
FUNCTIONS = "submit sweep run render plan layouts validate explain find runs wait diagnose".split()
CLASSES = "Job Run".split()
DATA = "RunStatus Explanation Finding Place JobPlan Listener".split()


def with_reference(page: str) -> str:
    """The page with everything after the mark renewed."""
    lines = ["", ""]
    for name in FUNCTIONS:
        lines += _section(f"### `{name}`", name, getattr(hl, name))
    for name in CLASSES:
        kind = getattr(hl, name)
        lines += _section(f"### `{name}`", name, kind)
        for key, member in vars(kind).items():
            if not key.startswith("_") and inspect.isfunction(member) and member.__doc__ and key != "one":
                lines += _section(f"#### `{name}.{key}`", f"{name.lower()}.{key}", member)
    lines += ["### Errors", "", "| exception | below | exit code of the command | meaning |", "|---|---|---|---|"]
    for name in hl.__all__:
        kind = getattr(hl, name)
        if isinstance(kind, type) and issubclass(kind, hl.UserError):
            lines.append(f"| `{name}` | `{kind.__mro__[1].__name__}` | {kind.exit_code} | {_summary(kind)} |")
    lines += ["", "### Answers", "", "| type | module | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | `{getattr(hl, name).__module__}` | {_summary(getattr(hl, name))} |" for name in DATA]
    return page.partition(MARK)[0] + MARK + re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _section(heading: str, name: str, what: Any) -> list[str]:
    signature = "" if inspect.isclass(what) else f"{name}{_signature(what)}"
    block = ["```text", signature, "```", ""] if signature else []
    return [heading, "", *block, *_text(inspect.getdoc(what) or ""), ""]


def _signature(function: Any) -> str:
    found = inspect.signature(function)
    kept = [one for one in found.parameters.values() if one.name != "self"]
    text = str(found.replace(parameters=kept)).replace("'", "")
    return re.sub(r" = <(?:[^<>]|<[^>]*>)*>", " = …", text)


def _text(text: str) -> Iterator[str]:
    """A docstring as Markdown: sections become lists, and indented lines code."""
    for block in text.split("\n\n"):
        head, *rest = block.splitlines()
        if head in {"Args:", "Raises:", "Attributes:"}:
            items = re.sub(r"\n {8,}", " ", "\n".join(rest))
            yield from (f"**{head}**", "", re.sub(r"^    (\w[^:]*): ", r"- `\1`: ", items, flags=re.MULTILINE))
        elif head.startswith("    "):
            yield from ("```text", *(line.strip() for line in (head, *rest)), "```")
        else:
            yield " ".join((head, *rest))
        yield ""


def _summary(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())
