"""`config`: write or check configurations of other programs: DeepSpeed, FSDP, Megatron, hostfiles, scripts.

The options are the fields of a request in `hpc_launch.plan`, which define names, types, limits and help. A field's
`extra` may set `name` (the option), `bare` (its value when given without one), `also` (aliases of its values) and
`rest` (it takes everything after `--`). Options may be written with underscores.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import click
import yaml
from msgspec import Meta

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.cli.config_by_hand import by_hand, find_script, job_options
from hpc_launch.cli.render import report
from hpc_launch.cli.shared_options import LazyGroup, json_option, output_option, set_option, site_option
from hpc_launch.cli.terminal import TERMINAL, print_note, write_text
from hpc_launch.job.type_hints import descriptions
from hpc_launch.script.render import render

if TYPE_CHECKING:
    from hpc_launch.plan.strategies.config_file import Library


class _Form(NamedTuple):
    """One command: what it does, an example, and the module and names of its requests in `hpc_launch.plan`."""

    about: str
    example: str
    module: str
    requests: tuple[str, ...]


FORMS = {
    "deepspeed": _Form(
        "write or check a DeepSpeed configuration",
        "config deepspeed --zero-stage 2 --offload-optimizer --bf16 -o ds_config.json\n"
        "hpc-launch config deepspeed --check ds_config.json",
        "strategies.deepspeed_file",
        ("DeepSpeed",),
    ),
    "fsdp": _Form(
        "write or check an FSDP configuration for Accelerate or the Trainer",
        "config fsdp --wrap-class LlamaDecoderLayer -o fsdp.yaml\nhpc-launch config fsdp --check fsdp.json",
        "strategies.fsdp_file",
        ("Fsdp",),
    ),
    "megatron": _Form(
        "print Megatron's flags for a parallel layout",
        "config megatron --world-size 64 --tp 8 --pp 2 --sequence-parallel --num-layers 32",
        "megatron_args",
        ("MegatronJob", "Parallel", "ModelShape"),
    ),
    "hostfile": _Form(
        "write a hostfile in DeepSpeed's format",
        "config hostfile --hosts 'n[1-4]' --slots 8 -o hostfile\nhpc-launch config hostfile --job job.yaml --site lab",
        "job_of_options",
        ("Hostfile",),
    ),
    "launcher": _Form(
        "write a script that starts one node's processes by hand",
        "config launcher --nodes 4 --gpus-per-node 8 --master-addr n1 --node-rank 0 \\\n"
        "    --script train.py -o start.sh -- --lr 3e-4\n"
        "hpc-launch config launcher --job job.yaml --site lab -o start.sh",
        "job_of_options",
        ("NodeScript",),
    ),
    "slurm": _Form(
        "write an sbatch script without a job file",
        "config slurm --nodes 4 --gpus-per-node 8 --time-limit 48:00:00 --script train.py -o job.sh",
        "job_of_options",
        ("SbatchScript",),
    ),
}


def _param(name: str, hint: Any, defaults: dict[str, Any], help_: str) -> click.Parameter:
    """The option for a field of a request."""
    kind, meta = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, Meta())
    extra = meta.extra or {}
    if extra.get("rest"):
        return click.Argument([name], nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]")
    # A mutable default is a factory; every one here makes an empty value.
    default = defaults.get(name)
    default = default if isinstance(default, str | int | float) else None
    option = extra.get("name", _option(name))
    kind = next((arg for arg in get_args(kind) if type(None) in get_args(kind) and arg is not type(None)), kind)
    if kind is bool:
        option = f"{option}/--no-{option.removeprefix('--')}" if default else option
        return click.Option([name, option], is_flag=True, default=default or False, help=help_)
    if default not in (None, "") and "Default" not in help_:
        help_ = f"{help_} Default: {default}."
    more: dict[str, Any] = {"is_flag": False, "flag_value": extra["bare"]} if "bare" in extra else {}
    if get_origin(kind) is Literal:
        choices, aliases = {str(choice): choice for choice in get_args(kind)}, extra.get("also", {})
        more["metavar"] = "|".join(choices)
        more["callback"] = lambda _, __, value: choices.get(aliases.get(str(value), str(value)))
        more["type"] = click.Choice([*choices, *aliases], case_sensitive=False)
    elif kind is int:
        more["type"] = _Integer(meta.ge, meta.le)
    elif kind is float:
        more["type"] = click.FloatRange(min=meta.ge)
    return click.Option(
        [name, option], multiple=get_origin(kind) is list, required=name not in defaults, help=help_, **more
    )


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")


class _Integer(click.IntRange):
    """An integer within limits; accepts 5e8."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = float(value)
            value = int(number) if "e" in str(value).lower() and number.is_integer() else value
        except (ValueError, OverflowError):
            pass  # reported by the range
        return super().convert(value, param, ctx)


def _load(name: str) -> click.Command:
    form = FORMS[name]
    module = importlib.import_module(f"hpc_launch.plan.{form.module}")
    requests = [getattr(module, request) for request in form.requests]
    params: list[click.Parameter] = []
    for request in requests:
        hints = get_type_hints(request, include_extras=True)
        defaults = dict(zip(reversed(request.__struct_fields__), reversed(request.__struct_defaults__), strict=False))
        texts = descriptions(request)
        params += [_param(field, hints[field], defaults, texts.get(field, "")) for field in request.__struct_fields__]
    if name in {"deepspeed", "fsdp"}:
        params += _check_options("deepspeed" if name == "deepspeed" else "accelerate")
    if name in {"hostfile", "launcher"}:
        params += job_options(name)
    for param in params if name != "megatron" else ():
        param.required = False  # found here, or in a job file

    def call(**values: Any) -> int:
        given = {key: value for key, value in values.items() if value is not None and value not in ((), [])}
        output = given.pop("output", None)
        if name in {"deepspeed", "fsdp"}:
            return _with_library(name, module, requests[0], given, output)
        if name in {"hostfile", "launcher"}:
            written = by_hand(name, given, output)
            return 0 if written is None else _finish(written, output, executable=name == "launcher")
        if name == "megatron" and _is_json(output):
            given["format"] = "args"
        if name == "slurm":
            find_script(given, "'--script'")
        asked = [one(**{key: given[key] for key in one.__struct_fields__ if key in given}) for one in requests]
        if name == "megatron":
            return _finish(module.make(*asked), output)
        plan, findings = module.plan_of_options(asked[0], os.getcwd(), dict(os.environ))
        return _finish((None if plan is None else render(plan, standalone=True), findings), output)

    text = f"{form.about[0].upper()}{form.about[1:]}.\n\n\b\nhpc-launch {form.example}"
    made = output_option(click.Command(name, callback=call, params=params, help=text, short_help=form.about))
    made = set_option(site_option(made)) if name in {"hostfile", "launcher"} else made
    return made if name in {"megatron", "slurm"} else json_option(made)


@click.group(
    "config",
    cls=LazyGroup,
    about={name: form.about for name, form in FORMS.items()},
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
    path = click.Path(path_type=Path)
    return [
        click.Option(["--check"], type=path, metavar="FILE", help="Check FILE instead of writing one."),
        click.Option(
            ["--python"], metavar="PYTHON", help=f"Python interpreter with {library} installed, to validate with."
        ),
        click.Option(
            ["--library/--no-library"], default=True, help=f"Validate with {library} itself if it is installed."
        ),
    ]


def _with_library(name: str, module: Any, request: Any, given: dict[str, Any], output: Path | None) -> int:
    """Write or check a DeepSpeed or FSDP file; ask the library about it if it is installed."""
    from hpc_launch.plan.strategies import config_file

    path, as_json = given.pop("check", None), given.pop("as_json", False)
    if as_json and path is None:
        raise click.UsageError("--json requires --check.")
    ask, python, reader = given.pop("library"), given.pop("python", None), given.get("reader")
    asked = request(**given)
    library: Library = "deepspeed" if name == "deepspeed" else "accelerate"
    replicas = asked.world_size and max(asked.world_size // asked.model_parallel, 1) if name == "deepspeed" else None
    if path is None:
        text, findings = module.make(asked, lambda field: Place(_option(field)))
        if ask and text is not None and not (name == "fsdp" and asked.reader == "trainer"):
            findings = [*findings, *config_file.ask(library, text, python, replicas)[1]]
        return _finish((text, findings), output)
    text, findings = config_file.read(path)
    located = None
    if text is not None:
        located, findings = config_file.parse(text, str(path), is_yaml=path.suffix in {".yaml", ".yml"})
    if text is not None and located is not None:
        more: dict[str, Any] = {"replicas": replicas, "hugging_face": asked.auto or None} if name == "deepspeed" else {}
        if name == "fsdp":
            more["reader"] = reader or module.reader_of(located)
            library = "accelerate" if more["reader"] == "accelerate" else "transformers"
        keys, refusal = config_file.ask(library, text, python, replicas) if ask else (None, [])
        if ask and keys is None and not refusal:
            print_note(f"{library} is not installed here, so only types are checked: name its Python with --python")
        findings = module.check(located, keys=keys, **more)
        findings += [] if errors(findings) else refusal
    return report(findings, "json" if as_json else "text", f"{path}: no errors")


def _finish(result: tuple[str | None, list[Finding]], output: Path | None, *, executable: bool = False) -> int:
    """Print warnings and write the text. Raises Refused if there is none."""
    text, findings = result
    if text is None or errors(findings):
        raise Refused(findings)
    TERMINAL.warn(findings)
    write_text(output, _as_named(text, output), executable=executable)
    return 0


def _as_named(text: str, output: Path | None) -> str:
    """The text as JSON, if the file is named so. Raises UsageError if it cannot be."""
    if not _is_json(output) or text.startswith("{"):
        return text
    data = None if text.startswith("#") else yaml.safe_load(text)
    if not isinstance(data, dict):
        raise UsageError(f"cannot write {output}: a script or a hostfile is not JSON", "give it another name")
    return json.dumps(data, indent=2) + "\n"


def _is_json(output: Path | None) -> bool:
    return output is not None and output.suffix == ".json"
