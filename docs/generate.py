"""Writes the reference pages and JSON schemas from the code: `make docs`. A test fails when they are out of step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from msgspec import NODEFAULT, Meta, Struct
from msgspec.structs import fields

from hpc_launch.cli.main import VERBS, group
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.spec.job import JobSpec
from hpc_launch.spec.json_schema import json_schema

HERE = Path(__file__).parent
MADE = "<!-- Made by docs/generate.py from {source}. Change that, then run `make docs`. -->\n\n"


def reference(title: str, intro: str, root: type[Struct], source: str) -> str:
    """A page with a section for each mapping of a file and a row for each key."""
    lines = [f"# {title}\n", MADE.format(source=source).strip(), "", intro.strip(), ""]
    todo: list[tuple[str, type[Struct]]] = [("", root)]
    for path, kind in todo:
        if path:
            lines += [f"## `{path}`", ""]
        lines += [_one_line(kind.__doc__), ""]
        form = getattr(kind, "__short_forms__", None)
        if form is not None:
            lines += [f"Short form: {_one_line(form.__doc__)}", ""]
        lines += ["| key | what it takes | default | what for |", "|---|---|---|---|"]
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            hint = hints[field.name]
            lines.append(
                f"| `{field.encode_name}` | {_type(hint)} | {_default(field.default, field.default_factory)} "
                f"| {_cell(_description(hint) + _examples(hint))} |"
            )
            todo += [(_join(path, field.encode_name, many), inner) for inner, many in _structs(hint)]
        lines.append("")
    return "\n".join(lines)


def _join(path: str, key: str, many: bool) -> str:
    here = f"{path}.{key}" if path else key
    return f"{here}.NAME" if many else here


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _metas(hint: Any) -> list[Meta]:
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        return [*_metas(inner), *(note for note in notes if isinstance(note, Meta))]
    return []


def _description(hint: Any) -> str:
    return next((meta.description for meta in reversed(_metas(hint)) if meta.description), "")


def _examples(hint: Any) -> str:
    shown = [example for meta in _metas(hint) for example in meta.examples or ()]
    return (
        " Example: " + ", ".join(f"`{json.dumps(example, ensure_ascii=False)}`" for example in shown) if shown else ""
    )


def _type(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        units = [meta.extra["unit"] for meta in _metas(hint) if meta.extra and "unit" in meta.extra]
        return units[0] if units else _type(args[0])
    if origin in {Union, UnionType}:
        return " or ".join(dict.fromkeys(_type(arg) for arg in args if arg is not type(None)))
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin is list:
        return f"list of {_type(args[0])}"
    if origin is tuple:
        return f"{len(args)} of {_type(args[0])}"
    if origin is dict:
        return f"mapping to {_type(args[1])}"
    names: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}
    return names.get(hint, "mapping, see below")


def _default(value: Any, factory: Any) -> str:
    if value is NODEFAULT:
        value = factory() if factory is not NODEFAULT else NODEFAULT
    if value is NODEFAULT:
        return "**required**"
    if value is None or value in ({}, [], ""):
        return ""
    if isinstance(value, Struct):
        return getattr(value, "name", "")
    return f"`{json.dumps(value)}`"


def _structs(hint: Any, many: bool = False) -> list[tuple[type[Struct], bool]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [(hint, many)]
    inside = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    deeper = get_origin(hint) is dict
    return [found for arg in inside if not isinstance(arg, str | Meta) for found in _structs(arg, many or deeper)]


def verbs() -> str:
    """A page with the help of every verb, as the terminal shows it."""
    lines = ["# The verbs\n", MADE.format(source="the commands' own help").strip(), ""]
    context = click.Context(group, info_name="hpc-launch", max_content_width=100, terminal_width=100)
    for verb in VERBS:
        command = group.get_command(context, verb)
        assert command is not None
        text = command.get_help(click.Context(command, context, verb, max_content_width=100, terminal_width=100))
        lines += [f"## {verb}", "", "```", text, "```", ""]
    return "\n".join(lines)


JOB_INTRO = """
A job file says what to train and how large; what differs from cluster to cluster is in the [site profile](site-profile.md).
Values come in layers, a later one winning: the site's `defaults:`, the user's `user.yaml`, the job file, `--set KEY=VALUE`.
`hpc-launch explain JOB.yaml` shows which layer, file and line set each value.

`${run.dir}`, `${attempt.dir}`, `${stop.file}` and `${job.id}` are filled inside the job; `${paths.NAME}` (the site's),
`${home}`, `${user}`, `${account}`, `${job.name}` and `${env.NAME}` (the submitting shell's) when it is submitted. `$${` is a
literal `${`. Nothing else is special: `$HOME` stays `$HOME`.

YAML's traps are closed: `24:00:00` is 24 hours, `0123` and `1.10` stay as written, `no` is a text, a doubled key is a fault.

For completion and checks in an editor, put this at the top of a job file:
`# yaml-language-server: $schema=PATH/docs/schema/job.schema.json`
"""

SITE_INTRO = """
A site profile holds what differs from cluster to cluster, as data. Profiles are looked for by name in the folders of
`$HPC_LAUNCH_SITE_PATH`, in `~/.config/hpc-launch/sites/`, in `/etc/hpc-launch/sites/` and among the shipped ones, in this
order; `--site` also takes a file. `site_configs/local.yaml` is a short example, `tests/golden/sites/booster.yaml` one with
most keys.
"""


def pages() -> dict[Path, str]:
    """Every generated file with its text."""
    return {
        HERE / "job-file.md": reference("The job file", JOB_INTRO, JobSpec, "hpc_launch/spec/job.py"),
        HERE / "site-profile.md": reference("The site profile", SITE_INTRO, SiteProfile, "hpc_launch/sites/profile.py"),
        HERE / "verbs.md": verbs(),
        HERE / "schema" / "job.schema.json": json.dumps(json_schema(JobSpec), indent=2) + "\n",
        HERE / "schema" / "site.schema.json": json.dumps(json_schema(SiteProfile), indent=2) + "\n",
    }


def main() -> None:
    """Write what is out of step, or with `--check` only name it and fail."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        print(path.relative_to(HERE.parent))
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(pages()[path], "utf-8")
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
