"""`config`: write or check configurations of other programs: DeepSpeed, FSDP, Megatron, hostfiles, scripts.

The options are the fields of a request in `hpc_launch.plan.strategies`, which define names, types, limits and help.
Options may be written with underscores instead of dashes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_launch.cli.config_options import params_of
from hpc_launch.cli.lazy_group import LazyGroup

if TYPE_CHECKING:
    from hpc_launch.base.findings import Finding

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
    "deepspeed": ("deepspeed_config", "DeepSpeed"),
    "fsdp": ("fsdp_config", "Fsdp"),
    "megatron": ("megatron", None),
    "hostfile": ("hostfile", "Hostfile"),
    "launcher": ("node_script", "NodeScript"),
    "slurm": ("sbatch_script", "SbatchScript"),
}
"""The module and the request type of each command; None if it combines several types."""


def _load(name: str) -> click.Command:
    file, request = _REQUESTS[name]
    module = importlib.import_module(f"hpc_launch.plan.strategies.{file}")
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
    build = module.from_options if name == "megatron" else parts[0]
    about = COMMANDS[name][0].upper() + COMMANDS[name][1:]
    text = f"{about}.\n\n\b\nhpc-launch {EXAMPLES[name]}"

    def call(**values: Any) -> int:
        given = {key: value for key, value in values.items() if value is not None and value not in ((), [])}
        return _RUNS.get(name, _write)(name, module, build, given)

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


_Result = tuple[str | None, "list[Finding]"]


def _write(name: str, module: Any, build: Callable[..., Any], given: dict[str, Any]) -> int:
    output = given.pop("output", None)
    return _finish(module.make(build(**given)), output, executable=name == "launcher")


def _with_library(name: str, module: Any, build: Callable[..., Any], given: dict[str, Any]) -> int:
    """Write or check a DeepSpeed or FSDP file; validate it with the library if it is installed."""
    from hpc_launch.base.findings import errors

    output, checked, as_json = given.pop("output", None), given.pop("check", None), given.pop("as_json", False)
    if as_json and checked is None:
        raise click.UsageError("--json requires --check.")
    ask, python = given.pop("library"), given.pop("python", None)
    reader = given.get("reader")
    request = build(**given)
    text: str | None
    if checked is None:
        text, findings = module.make(request)
    else:
        text, findings = _check_file(name, checked, request, reader, ask=ask, python=python)
    if ask and text is not None and not errors(findings):
        findings = [*findings, *_library_findings(name, text, request, python, checked)]
    if checked is None:
        return _finish((text, findings), output)
    from hpc_launch.cli.findings_report import report

    return report(findings, "json" if as_json else "text", f"{checked}: no errors")


def _check_file(name: str, path: Path, request: Any, reader: Any, *, ask: bool, python: str | None) -> _Result:
    """Check a file against the keys of the installed library, or of the tables that ship with hpc-launch."""
    from hpc_launch.plan.strategies import config_file
    from hpc_launch.plan.strategies.library_query import installed_keys

    text, findings = config_file.read(path)
    if text is None:
        return None, findings
    is_yaml = path.suffix in {".yaml", ".yml"}
    located, findings = (config_file.parse_yaml if is_yaml else config_file.parse_json)(text, str(path))
    if located is None:
        return text, findings
    if name == "fsdp":
        from hpc_launch.plan.strategies import fsdp_check
        from hpc_launch.plan.strategies.fsdp_keys import library_of

        reader = reader or fsdp_check.reader_of(located)
        keys = installed_keys(library_of(reader), python=python) if ask else None
        return text, fsdp_check.check(located, reader=reader, keys=keys)
    from hpc_launch.plan.strategies import deepspeed_check

    keys = installed_keys("deepspeed", python=python) if ask else None
    hugging_face = True if request.auto else None
    return text, deepspeed_check.check(located, replicas=_replicas(request), hugging_face=hugging_face, keys=keys)


def _library_findings(
    name: str, text: str, request: Any, python: str | None, checked: Path | None
) -> Sequence[Finding]:
    from hpc_launch.plan.strategies.library_query import check_with_accelerate, check_with_deepspeed

    if name == "deepspeed":
        return check_with_deepspeed(text, replicas=_replicas(request), python=python)
    is_accelerate = checked.suffix in {".yaml", ".yml"} if checked else request.reader == "accelerate"
    return check_with_accelerate(text, python=python) if is_accelerate else []


def _replicas(request: Any) -> int | None:
    return None if request.world_size is None else max(request.world_size // request.model_parallel, 1)


def _launcher(name: str, module: Any, build: Callable[..., Any], given: dict[str, Any]) -> int:
    """Write the script of one node, or that of a job file's plan."""
    if "job" in given:
        return _by_hand(name, given)
    _refuse_job_options(given, "hosts")
    if "script" not in given:
        raise click.UsageError("Missing option '--script' or '--job'.")
    return _write(name, module, build, given)


def _by_hand(name: str, given: dict[str, Any]) -> int:
    from hpc_launch.cli.config_by_hand import by_hand

    written = by_hand(name, given)
    return 0 if written is None else _finish((written[0], []), written[1], executable=name == "launcher")


def _refuse_job_options(given: dict[str, Any], *more: str) -> None:
    from hpc_launch.cli.config_by_hand import JOB_ONLY

    for key in (*JOB_ONLY, *more):
        if given.get(key):
            raise click.UsageError(f"{JOB_ONLY.get(key, '--' + key)} requires --job.")
        given.pop(key, None)


def _hostfile(name: str, module: Any, build: Callable[..., Any], given: dict[str, Any]) -> int:
    """Write a hostfile; inside a job, default to its nodes and their GPUs. Or that of a job file's plan."""
    if "job" in given:
        return _by_hand(name, given)
    _refuse_job_options(given)
    if "hosts" not in given and os.environ.get("SLURM_JOB_NODELIST"):
        given["hosts"] = os.environ["SLURM_JOB_NODELIST"]
        gpus = os.environ.get("SLURM_GPUS_ON_NODE", "")
        if gpus.isascii() and gpus.isdigit() and len(gpus) < 10 and int(gpus):
            given.setdefault("slots", int(gpus))
    return _write(name, module, build, given)


def _slurm(name: str, module: Any, build: Callable[..., Any], given: dict[str, Any]) -> int:
    output = given.pop("output", None)
    plan, findings = module.plan_of(build(**given), os.getcwd(), dict(os.environ))
    if plan is None:
        return _finish((None, findings), output)
    from hpc_launch.script.render import render

    return _finish((render(plan), findings), output)


_RUNS: dict[str, Callable[[str, Any, Callable[..., Any], dict[str, Any]], int]] = {
    "deepspeed": _with_library,
    "fsdp": _with_library,
    "hostfile": _hostfile,
    "launcher": _launcher,
    "slurm": _slurm,
}


def _finish(result: _Result, output: Path | None, *, executable: bool = False) -> int:
    """Print warnings and write the text. Raises Refused if there is none."""
    from hpc_launch.base.errors import Refused, UsageError
    from hpc_launch.base.findings import errors
    from hpc_launch.cli.warn import warn

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
