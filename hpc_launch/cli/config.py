"""`config`: write or check configurations of other programs: DeepSpeed, FSDP, Megatron, hostfiles, scripts.

The options are the fields of a request in `hpc_launch.plan`, which define names, types, limits and help.
Options may be written with underscores instead of dashes.

Command-line options generated from the fields of a request: type, limits and help come from the field.

A field's `extra` may set `name` and `names` (the option and its aliases), `bare` (its value when given without one),
`also` (aliases of its values) and `rest` (it takes everything after `--`).
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click

from hpc_launch.cli.shared_options import LazyGroup

if TYPE_CHECKING:
    from hpc_launch.base.findings import Finding
    from hpc_launch.plan.strategies.config_file import Library, LibraryKeys


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


COMMANDS = {
    "deepspeed": "write or check a DeepSpeed configuration",
    "fsdp": "write or check an FSDP configuration for Accelerate or the Trainer",
    "megatron": "print Megatron's flags for a parallel layout",
    "hostfile": "write a hostfile in DeepSpeed's format",
    "launcher": "write a script that starts one node's processes by hand",
    "slurm": "write an sbatch script without a job file",
}

EXAMPLES = {
    "deepspeed": "config deepspeed --zero-stage 2 --offload-optimizer --bf16 -o ds_config.json\n"
    "hpc-launch config deepspeed --check ds_config.json",
    "fsdp": "config fsdp --wrap-class LlamaDecoderLayer -o fsdp.yaml\nhpc-launch config fsdp --check fsdp.json",
    "megatron": "config megatron --world-size 64 --tp 8 --pp 2 --sequence-parallel --num-layers 32",
    "hostfile": "config hostfile --hosts 'n[1-4]' --slots 8 -o hostfile\n"
    "hpc-launch config hostfile --job job.yaml --site lab",
    "launcher": "config launcher --num-nodes 4 --gpus-per-node 8 --master-addr n1 --node-rank 0 \\\n"
    "    --script train.py -o start.sh -- --lr 3e-4\n"
    "hpc-launch config launcher --job job.yaml --site lab -o start.sh",
    "slurm": "config slurm --nodes 4 --gpus-per-node 8 --time-limit 48:00:00 --script train.py -o job.sh",
}


_REQUESTS = {
    "deepspeed": ("strategies.deepspeed_config", "DeepSpeed"),
    "fsdp": ("strategies.fsdp_config", "Fsdp"),
    "megatron": ("megatron_args", None),
    "hostfile": ("job_of_options", "Hostfile"),
    "launcher": ("job_of_options", "NodeScript"),
    "slurm": ("job_of_options", "SbatchScript"),
}
"""The module and the request type of each command; None if it combines several types."""


def _load(name: str) -> click.Command:
    file, request = _REQUESTS[name]
    module = importlib.import_module(f"hpc_launch.plan.{file}")
    parts = (getattr(module, request),) if request else module.PARTS
    params = [param for part in parts for param in params_of(part)]
    output = click.Path(path_type=Path)
    params.append(
        click.Option(["-o", "--output"], type=output, metavar="FILE", help="Write to FILE instead of stdout.")
    )
    if name in {"deepspeed", "fsdp"}:
        params += _check_options(name)
    if name in {"hostfile", "launcher"}:
        from hpc_launch.cli.config_by_hand import job_options

        params += job_options(name)
        for param in params:
            param.required = False
    about = COMMANDS[name][0].upper() + COMMANDS[name][1:]
    text = f"{about}.\n\n\b\nhpc-launch {EXAMPLES[name]}"

    def call(**values: Any) -> int:
        given = {key: value for key, value in values.items() if value is not None and value not in ((), [])}
        output = given.pop("output", None)
        if name in {"deepspeed", "fsdp"}:
            return _with_library(name, module, parts[0], given, output)
        if name in {"hostfile", "launcher"}:
            from hpc_launch.cli.config_by_hand import by_hand

            written = by_hand(name, given, output)
            return 0 if written is None else _finish(written, output, executable=name == "launcher")
        if name == "megatron":
            asked = (part(**{key: given[key] for key in part.__struct_fields__ if key in given}) for part in parts)
            return _finish(module.make(*asked), output)
        from hpc_launch.script.render import render

        plan, findings = module.plan_of_sbatch_script(parts[0](**given), os.getcwd(), dict(os.environ))
        return _finish((None if plan is None else render(plan, standalone=True), findings), output)

    return click.Command(name, callback=call, params=params, help=text, short_help=COMMANDS[name])


@click.group(
    "config",
    cls=LazyGroup,
    about=COMMANDS,
    load=_load,
    context_settings={"token_normalize_func": lambda word: word.replace("_", "-")},
)
def command() -> None:
    """Write configuration files and flags for other programs, with every value explicit, or check a file with --check.

    \b
    hpc-launch config deepspeed --zero-stage 3 --bf16 -o ds_config.json
    hpc-launch config deepspeed --check ds_config.json
    """


def _check_options(library: str) -> list[click.Parameter]:
    name = "deepspeed" if library == "deepspeed" else "accelerate"
    return [
        click.Option(
            ["--check"], type=click.Path(path_type=Path), metavar="FILE", help="Check FILE instead of writing one."
        ),
        click.Option(
            ["--python"], metavar="PYTHON", help=f"Python interpreter with {name} installed, to validate with."
        ),
        click.Option(["as_json", "--json"], is_flag=True, help="Print JSON, with --check."),
        click.Option(["--library/--no-library"], default=True, help=f"Validate with {name} itself if it is installed."),
    ]


def _with_library(name: str, module: Any, request: Any, given: dict[str, Any], output: Path | None) -> int:
    """Write or check a DeepSpeed or FSDP file; ask the library about it if it is installed."""
    from hpc_launch.base.findings import errors
    from hpc_launch.cli.render import report
    from hpc_launch.cli.terminal import print_note

    path, as_json = given.pop("check", None), given.pop("as_json", False)
    if as_json and path is None:
        raise click.UsageError("--json requires --check.")
    ask, python, reader = given.pop("library"), given.pop("python", None), given.get("reader")
    asked = request(**given)
    if path is None:
        text, findings = module.make(asked)
        if ask and text is not None and (name == "deepspeed" or asked.reader == "accelerate"):
            library: Library = "deepspeed" if name == "deepspeed" else "accelerate"
            findings = [*findings, *_ask(library, text, asked, python)[1]]
        return _finish((text, findings), output)
    from hpc_launch.plan.strategies import config_file, deepspeed_check, fsdp_check

    text, findings = config_file.read(path)
    parse = config_file.parse_yaml if path.suffix in {".yaml", ".yml"} else config_file.parse_json
    located, findings = parse(text, str(path)) if text is not None else (None, findings)
    if text is not None and located is not None:
        reader = reader or fsdp_check.reader_of(located)
        library = "deepspeed" if name == "deepspeed" else "accelerate" if reader == "accelerate" else "transformers"
        keys, refusal = _ask(library, text, asked, python) if ask else (None, [])
        if ask and keys is None and not refusal:
            print_note(f"{library} is not installed here, so unknown keys are not found: name its Python with --python")
        if name == "fsdp":
            findings = fsdp_check.check(located, reader=reader, keys=keys)
        else:
            hugging_face = True if asked.auto else None
            findings = deepspeed_check.check(located, replicas=_replicas(asked), hugging_face=hugging_face, keys=keys)
        findings += [] if errors(findings) else refusal
    return report(findings, "json" if as_json else "text", f"{path}: no errors")


def _ask(library: Library, text: str, asked: Any, python: str | None) -> tuple[LibraryKeys | None, list[Finding]]:
    """The keys that the library reads and what it says about the file; nothing if it is not installed."""
    from hpc_launch.plan.strategies.config_file import ask, is_installed

    if python is None and not is_installed(library):
        return None, []
    return ask(library, json.dumps([json.loads(text), _replicas(asked)]) if library == "deepspeed" else text, python)


def _replicas(asked: Any) -> int | None:
    return None if asked.world_size is None else max(asked.world_size // asked.model_parallel, 1)


def _finish(result: tuple[str | None, list[Finding]], output: Path | None, *, executable: bool = False) -> int:
    """Print warnings and write the text. Raises Refused if there is none."""
    from hpc_launch.base.errors import Refused, UsageError
    from hpc_launch.base.findings import errors
    from hpc_launch.cli.terminal import warn

    text, findings = result
    if text is None or errors(findings):
        raise Refused(findings)
    warn(findings)
    if output is None:
        click.echo(text, nl=False)
        return 0
    from hpc_launch.base.files import write_output

    try:
        write_output(output, text, mode=0o777 if executable else 0o666)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}", "name another file with -o") from error
    return 0
