"""`config launcher` and `config hostfile`: a start by hand, from options or from the plan of a job file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from hpc_launch.base.errors import UsageError
from hpc_launch.base.findings import Finding
from hpc_launch.cli.shared_options import echo_json
from hpc_launch.cli.terminal import TERMINAL, print_note
from hpc_launch.job.hostlist import expand
from hpc_launch.plan import job_of_options
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.script.by_hand import HandStart, hostfile_of, start_by_hand
from hpc_launch.service.check import announce

OF_A_JOB = {"site": "--site", "sets": "--set", "as_json": "--json"}
OF_BOTH = {"output", "hosts", "master_port"}
"""Options that go with --job; the plan has the rest."""


def job_options(name: str) -> list[click.Parameter]:
    """The options of both commands for a plan."""
    path = click.Path(path_type=Path)
    options: list[click.Parameter] = [
        click.Option(["--job"], type=path, metavar="JOB.yaml", help="Take everything from the plan of this job file."),
    ]
    if name == "launcher":
        text = "The nodes of a Slurm job, with --job. Default: those of the job around this command."
        options.append(click.Option(["--hosts"], metavar="LIST", help=text))
    return options


def by_hand(name: str, given: dict[str, Any], output: Path | None) -> tuple[str | None, list[Finding]] | None:
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
    find_script(given, "'--script' or '--job'")
    asked = job_of_options.NodeScript(**given)
    plan, findings = job_of_options.plan_of_options(asked, os.getcwd(), dict(os.environ))
    if plan is None:
        return None, findings
    return start_by_hand(plan, asked.hosts, asked.master_port, asked.node_rank).script, findings


def find_script(given: dict[str, Any], options: str) -> None:
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
        echo_json(_as_json(start, hostfile, include, output))
        return None if output is None else start.script if name == "launcher" else hostfile
    if name == "launcher":
        return start.script
    return f"# deepspeed --include={include}\n{hostfile}" if include else hostfile


def _as_json(start: HandStart, hostfile: str, include: str, output: Path | None) -> dict[str, object]:
    nodes = [
        {"host": host.name, "node_rank": rank, "slots": host.slots, "command": f"bash {output or 'FILE'} {rank}"}
        for rank, host in enumerate(start.started)
    ]
    return {
        "master_addr": start.master_addr,
        "master_port": start.master_port,
        "nodes": nodes,
        "hostfile": hostfile,
        "include": include or None,
        "script": start.script,
    }
