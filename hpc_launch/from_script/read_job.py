"""Read a whole script: its request, what it sets up, its training, and the account of every line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.from_script.choose_launch import LaunchSize, choose, launch_size
from hpc_launch.from_script.directives import read_directives
from hpc_launch.from_script.line_accounts import Ledger, LineAccount
from hpc_launch.from_script.old_job import OldJob, OldLaunch
from hpc_launch.from_script.read_script import ScriptText, read_script
from hpc_launch.from_script.request import Request, read_request
from hpc_launch.from_script.scope import Scope
from hpc_launch.from_script.secret_values import take_out
from hpc_launch.from_script.shell_tree import depth_is_bounded, parse
from hpc_launch.from_script.values import Word
from hpc_launch.from_script.walk_script import Walker
from hpc_launch.job.secret_names import SECRET_NAME

_PLACEHOLDER = re.compile(r"<([A-Z][A-Z0-9]*(?:[_-][A-Z0-9]+)+)>")
"""`<YOUR_ACCOUNT>` of an example, which bash would take for redirections."""


class OldScript(Struct, frozen=True):
    """What a script requests, sets up and starts."""

    name: str
    folder: str
    request: Request
    job: OldJob
    launch: OldLaunch | None
    size: LaunchSize | None
    accounts: tuple[LineAccount, ...]
    followed: Mapping[str, tuple[LineAccount, ...]]
    """Accounts of local shell files that the launch line starts."""
    remarks: tuple[str, ...]

    def of(self, outcome: str) -> list[LineAccount]:
        """The accounts with one outcome."""
        return [account for account in self.accounts if account.outcome == outcome]


def read_old_script(path: Path, folder: str, environment: Mapping[str, str]) -> OldScript:
    """Read a script that is submitted in `folder`. Raises UsageError if it is not the text of a shell script."""
    return understand(read_script(path), os.path.basename(path), folder, environment)


def understand(script: ScriptText, name: str, folder: str, environment: Mapping[str, str]) -> OldScript:
    """The same for a script's text."""
    lines = script.lines
    ledger = Ledger(lines)
    for number, line in enumerate(lines, 1):
        if found := _PLACEHOLDER.search(line):
            ledger.not_understood([number], f"a placeholder to fill in: {found[0]}")
    filled = [_PLACEHOLDER.sub(r"\1", line) for line in lines]
    request = read_request(read_directives(filled, ledger), ledger)
    root = parse(_PLACEHOLDER.sub(r"\1", script.text))
    if not depth_is_bounded(root):
        raise UsageError(f"{name} nests commands deeper than can be read", "name an sbatch script")
    job = OldJob()
    scope = Scope({"SLURM_JOB_NAME": name, **request.constants()}, environment, folder)  # sbatch(1), --job-name
    base = os.path.join(folder, request.workdir or "")
    walker = Walker(request, scope, ledger, job, base)
    walker.script(root)
    launch = choose(job.launches, request, ledger)
    if launch is not None:
        job.env = launch.job_env
        _keep_secrets(job, launch, ledger)
    job.workdir = launch.workdir if launch is not None else job.workdir
    size = launch_size(launch, request) if launch is not None else None
    taken = {account.line for account in ledger.accounts() if account.outcome == "taken" or account.keys}
    for number, line in enumerate(lines, 1):
        if "\ufffd" in line and (number in taken or not line.lstrip().startswith("#")):
            ledger.not_understood([number], "bytes that are not UTF-8: write the value")
    remarks = list(script.remarks)
    if launch is None:
        remarks.append("no line that starts a training was found")
    elif size is not None and size.starts_per_node > 1 and launch.processes_per_node is not None:
        remarks.append(
            f"the old script starts {launch.launcher} {size.starts_per_node} times on each node; once is right"
        )
    elif launch.launcher in {"torchrun", "deepspeed"} and not launch.by_srun and request.nodes > 1 and not launch.pdsh:
        remarks.append(f"the old script starts {launch.launcher} on the first of {request.nodes} nodes only")
    return OldScript(name, folder, request, job, launch, size, ledger.accounts(), walker.followed, tuple(remarks))


def _keep_secrets(job: OldJob, launch: OldLaunch, ledger: Ledger) -> None:
    """Values of secrets are copied from nowhere: not from the launch line, nor from other variables."""
    for name in [name for name in launch.env if SECRET_NAME.search(name)]:
        del launch.env[name]
        _secret(job, name)
        ledger.taken(launch.lines, "secrets", why=f"the value of {name} is not copied: set it in your shell")
    launch.words = [_kept(word, job, ledger) for word in launch.words]
    launch.arguments = [_kept(word, job, ledger) for word in launch.arguments]
    for name, value in launch.env.items():
        launch.env[name] = _kept(Word(value, launch.lines[0]), job, ledger).value
    for name, (value, line) in job.env.items():
        job.env[name] = (_kept(Word(value, line), job, ledger).value, line)


def _kept(word: Word, job: OldJob, ledger: Ledger) -> Word:
    """The word without secrets."""
    text, names, lost = take_out(word.text)
    for name in names:
        _secret(job, name)
    if lost:
        ledger.not_understood([word.line], "a secret, which is not copied: `secrets:` and `${shell.NAME}`")
    elif names:
        ledger.taken([word.line], "secrets", why="values of secrets are not copied: set them in your shell")
    return word.with_text(text)


def _secret(job: OldJob, name: str) -> None:
    if name not in job.secrets:
        job.secrets.append(name)
