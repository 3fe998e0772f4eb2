"""`config`: write or check configurations of other programs: DeepSpeed, FSDP, Megatron, hostfiles, scripts.

The options are the fields of a request in `hpc_launch.plan`, which define names, types, limits and help. A field's
`extra` may set `name` (the option), `bare` (its value when given without one), `also` (aliases of its values) and
`rest` (it takes everything after `--`). Options may be written with underscores.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import click
import yaml
from msgspec import Meta

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.cli.render import report
from hpc_launch.cli.shared_options import (
    LazyGroup,
    echo_json,
    json_option,
    json_text,
    output_option,
    set_option,
    site_option,
)
from hpc_launch.cli.terminal import TERMINAL, print_note, write_text
from hpc_launch.job.hostlist import expand
from hpc_launch.job.type_hints import descriptions
from hpc_launch.plan import job_of_options
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.script.by_hand import hostfile_of, start_by_hand
from hpc_launch.script.render import render
from hpc_launch.service.check import announce

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

PATH = click.Path(path_type=Path)
OF_A_JOB = {"site": "--site", "sets": "--set", "as_json": "--json"}
OF_BOTH = {"output", "hosts", "master_port"}
"""Options that go with --job; the plan has the rest."""


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
        params += _job_options(name)
    for param in params if name != "megatron" else ():
        param.required = False  # found here, or in a job file

    def call(**values: Any) -> int:
        given = {key: value for key, value in values.items() if value is not None and value not in ((), [])}
        output = given.pop("output", None)
        if name in {"deepspeed", "fsdp"}:
            return _with_library(name, module, requests[0], given, output)
        if name in {"hostfile", "launcher"}:
            written = _by_hand(name, given, output)
            return 0 if written is None else _finish(written, output, executable=name == "launcher")
        if name == "megatron" and _is_json(output):
            given["format"] = "args"
        if name == "slurm":
            _find_script(given, "'--script'")
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
    sections={"Commands": {name: form.about for name, form in FORMS.items()}},
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
    return [
        click.Option(["--check"], type=PATH, metavar="FILE", help="Check FILE instead of writing one."),
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
    """Print warnings and write the text, as JSON if the file is named so. Raises Refused, UsageError."""
    text, findings = result
    if text is None or errors(findings):
        raise Refused(findings)
    TERMINAL.warn(findings)
    if _is_json(output) and not text.startswith("{"):
        data = None if text.startswith("#") else yaml.safe_load(text)
        if not isinstance(data, dict):
            raise UsageError(f"cannot write {output}: a script or a hostfile is not JSON", "give it another name")
        text = json_text(data)
    write_text(output, text, executable=executable)
    return 0


def _is_json(output: Path | None) -> bool:
    return output is not None and output.suffix == ".json"


def _job_options(name: str) -> list[click.Parameter]:
    """The options of both commands for a plan."""
    text = "The nodes of a Slurm job, with --job. Default: those of the job around this command."
    return [
        click.Option(["--job"], type=PATH, metavar="JOB.yaml", help="Take everything from the plan of this job file."),
        *([click.Option(["--hosts"], metavar="LIST", help=text)] if name == "launcher" else []),
    ]


def _by_hand(name: str, given: dict[str, Any], output: Path | None) -> tuple[str | None, list[Finding]] | None:
    """The text to write and its findings; None after printing JSON. Raises UsageError, Refused."""
    context = click.get_current_context()
    typed = {key for key in given if context.get_parameter_source(key) == click.core.ParameterSource.COMMANDLINE}
    if "job" in given:
        foreign = typed - {"job", *OF_A_JOB, *OF_BOTH}
        if foreign:
            option = "--" + min(foreign).replace("_", "-")
            raise UsageError(f"{option} and --job exclude each other", "change the job file, or use --set KEY=VALUE")
        text = _of_a_job(name, given, typed, output)
        return None if text is None else (text, [])
    foreign = typed & {*OF_A_JOB, *(["hosts"] if name == "launcher" else [])}
    if foreign:
        raise click.UsageError(f"{OF_A_JOB.get(min(foreign), '--hosts')} requires --job.")
    given = {key: value for key, value in given.items() if key not in OF_A_JOB}
    if name == "hostfile":
        hosts, findings = job_of_options.hosts_of(job_of_options.Hostfile(**_of_the_slurm_job(given)))
        return (hostfile_of(hosts)[0] if hosts else None), findings
    _find_script(given, "'--script' or '--job'")
    asked = job_of_options.NodeScript(**given)
    plan, findings = job_of_options.plan_of_options(asked, os.getcwd(), dict(os.environ))
    if plan is None:
        return None, findings
    return start_by_hand(plan, asked.hosts, asked.master_port, asked.node_rank).script, findings


def _find_script(given: dict[str, Any], options: str) -> None:
    """Take the usual file of a training here if none is named. Raises UsageError."""
    found = [name for name in ("train.py", "src/train.py") if "script" not in given and os.path.isfile(name)]
    if found:
        given["script"] = found[0]
        print_note(f"--script {found[0]}")
    elif "script" not in given:
        raise click.UsageError(f"Missing option {options}.")


def _of_the_slurm_job(given: dict[str, Any]) -> dict[str, Any]:
    """The options, with the nodes and GPUs of the Slurm job around this command where no hosts are named."""
    nodes, gpus = os.environ.get("SLURM_JOB_NODELIST"), os.environ.get("SLURM_GPUS_ON_NODE", "")
    if "hosts" in given or not nodes:
        return given
    slots = {"slots": int(gpus)} if re.fullmatch("[1-9][0-9]{0,8}", gpus) else {}
    return {"hosts": nodes, **slots, **given}


def _of_a_job(name: str, given: dict[str, Any], typed: set[str], output: Path | None) -> str | None:
    prepared = prepare_job(given["job"], site=given.get("site"), sets=tuple(given.get("sets", ())), anywhere=True)
    announce(prepared, TERMINAL, prepared.warnings)
    if "hosts" in typed and prepared.plan.hosts:
        hint = "use `--set exclude=[HOST]` to leave out a host of the profile"
        raise UsageError("--hosts is for jobs on Slurm", hint)
    try:
        nodes = expand(given.get("hosts") or os.environ.get("SLURM_JOB_NODELIST", ""))
    except ValueError as error:
        raise UsageError(f"--hosts: {error}", "use Slurm's syntax: n[1-4],m07") from None
    start = start_by_hand(prepared.plan, nodes, given["master_port"] if "master_port" in typed else None)
    hostfile, include = hostfile_of(start.hosts)
    if given.get("as_json"):
        nodes_json = [
            {"host": host.name, "node_rank": rank, "slots": host.slots, "command": f"bash {output or 'FILE'} {rank}"}
            for rank, host in enumerate(start.started)
        ]
        address = {"master_addr": start.master_addr, "master_port": start.master_port}
        texts = {"hostfile": hostfile, "include": include or None, "script": start.script}
        echo_json({**address, "nodes": nodes_json, **texts})
        return None if output is None else start.script if name == "launcher" else hostfile
    if name == "launcher":
        return start.script
    return f"# deepspeed --include={include}\n{hostfile}" if include else hostfile
