"""Command-line options generated from the fields of a request: type, limits and help come from the field.

A field's `extra` may set `name` and `names` (the option and its aliases), `bare` (its value when given without one),
`also` (aliases of its values) and `rest` (it takes everything after `--`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click

_PLAIN = (str, int, float, bool)


def params_of(part: Any) -> list[click.Parameter]:
    """One option for each field of a request."""
    hints = get_type_hints(part, include_extras=True)
    defaults = dict(zip(reversed(part.__struct_fields__), reversed(part.__struct_defaults__), strict=False))
    return [_param(name, hints[name], defaults) for name in part.__struct_fields__]


def _param(name: str, hint: Any, defaults: dict[str, Any]) -> click.Parameter:
    kind, meta = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
    extra = (meta.extra if meta else None) or {}
    if extra.get("rest"):
        return click.Argument([name], nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]")
    required = name not in defaults
    # A mutable default is a factory; every one here makes an empty value.
    default = None if required or callable(defaults[name]) or not isinstance(defaults[name], _PLAIN) else defaults[name]
    names = [extra.get("name", "--" + name.replace("_", "-")), *extra.get("names", [])]
    help_ = meta.description if meta else None
    inner = next((arg for arg in get_args(kind) if arg is not type(None)), kind) if _optional(kind) else kind
    if inner is bool:
        names = [f"{names[0]}/--no-{names[0].removeprefix('--')}"] if default else names
        return click.Option([name, *names], is_flag=True, default=default or False, help=help_)
    if default is not None and default != "" and "Default" not in (help_ or ""):
        help_ = f"{help_} Default: {default}."
    several = get_origin(inner) is list
    more: dict[str, Any] = {"is_flag": False, "flag_value": extra["bare"]} if "bare" in extra else {}
    if get_origin(inner) is Literal:
        more["callback"] = _literal_value(get_args(inner), extra.get("also", {}))
        more["metavar"] = "|".join(map(str, get_args(inner)))
    return click.Option(
        [name, *names], type=_type(inner, meta, extra), multiple=several, required=required, help=help_, **more
    )


def _optional(kind: Any) -> bool:
    return type(None) in get_args(kind)


def _type(kind: Any, meta: Any, extra: dict[str, Any]) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice([*map(str, get_args(kind)), *extra.get("also", {})], case_sensitive=False)
    if kind is int:
        return _integer(meta.ge)
    if kind is float:
        minimum = meta.ge if meta.ge is not None else meta.gt
        return click.FloatRange(min=minimum, min_open=meta.gt is not None)
    return click.STRING


def _literal_value(
    choices: tuple[Any, ...], aliases: dict[str, str]
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that converts an argument to one of the literal values, resolving aliases."""

    def convert(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        value = aliases.get(str(value), value)
        return next((choice for choice in choices if str(choice) == str(value)), value)

    return convert


def _integer(minimum: int | None) -> Callable[[Any], int]:
    """An integer type with a minimum; accepts 5e8."""

    def n(value: Any) -> int:
        try:
            number = float(value) if isinstance(value, str) and "e" in value.lower() else int(value)
            integer = int(number)
        except (ValueError, OverflowError):
            raise click.BadParameter(f"{value!r} is not an integer") from None
        if integer != number or (minimum is not None and integer < minimum):
            raise click.BadParameter(f"{value} is not an integer >= {minimum}")
        return integer

    return n
