"""Read a whole script: its request, what it sets up, its training, and the account of every line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.from_script.line_accounts import Ledger, LineAccount, take_out
from hpc_launch.from_script.old_job import LaunchSize, OldJob, OldLaunch, choose, launch_size
from hpc_launch.from_script.slurm_request import Request
from hpc_launch.from_script.statements import Reader
from hpc_launch.from_script.variables import Variables
from hpc_launch.from_script.words import ScriptText, Word, parse, read_script
from hpc_launch.job.container import SECRET_NAME

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
    lines = script.text.split("\n")
    filled = _PLACEHOLDER.sub(r"\1", script.text)
    ledger = Ledger(lines)
    request = Request(filled.split("\n"), ledger)
    root = parse(filled)
    if root is None:
        raise UsageError(f"{name} nests commands deeper than can be read", "name an sbatch script")
    constants = {"SLURM_JOB_NAME": name, **request.constants()}  # sbatch(1), --job-name
    base = os.path.join(folder, request.get("chdir") or "")
    reader = Reader(request, Variables(constants, environment, folder), ledger, base)
    reader.script(root)
    job = reader.job
    launch = choose(job, request, ledger)
    if launch is not None:
        job.env, job.workdir = launch.job_env, launch.workdir
        _keep_secrets(job, launch, ledger)
    for number, line in enumerate(lines, 1):
        if found := _PLACEHOLDER.search(line):
            ledger.not_understood([number], f"a placeholder to fill in: {found[0]}")
        if "\ufffd" in line and (line.startswith("#SBATCH") or not line.lstrip().startswith("#")):
            ledger.not_understood([number], "bytes that are not UTF-8: write the value")
    size = launch_size(launch, request) if launch is not None else None
    remarks = (*script.remarks, *_remarks(launch, size))
    return OldScript(name, folder, request, job, launch, size, ledger.accounts(), reader.followed, remarks)


def _remarks(launch: OldLaunch | None, size: LaunchSize | None) -> list[str]:
    """What is odd about the old launch as a whole."""
    if launch is None or size is None:
        return ["no line that starts a training was found"]
    if size.starts_per_node > 1 and launch.processes_per_node is not None:
        times = f"{size.starts_per_node} times on each node"
        return [f"the old script starts {launch.launcher} {times}; once is right"]
    if launch.launcher in {"torchrun", "deepspeed"} and not launch.by_srun and size.nodes > 1 and not launch.pdsh:
        return [f"the old script starts {launch.launcher} on the first of {size.nodes} nodes only"]
    return []


def _keep_secrets(job: OldJob, launch: OldLaunch, ledger: Ledger) -> None:
    """Values of secrets are copied from nowhere: not from the launch line, nor from other variables."""

    def kept(word: Word) -> Word:
        text, names, lost = take_out(word.text)
        for name in names:
            job.add_secret(name)
        if lost:
            ledger.not_understood([word.line], "a secret, which is not copied: `secrets:` and `${shell.NAME}`")
        elif names:
            ledger.taken([word.line], "secrets", why="values of secrets are not copied: set them in your shell")
        return word.with_text(text)

    for name in [name for name in launch.env if SECRET_NAME.search(name)]:
        del launch.env[name]
        job.add_secret(name)
        ledger.taken(launch.lines, "secrets", why=f"the value of {name} is not copied: set it in your shell")
    launch.words, launch.arguments = list(map(kept, launch.words)), list(map(kept, launch.arguments))
    launch.env = {name: kept(Word(value, launch.lines[0])).value for name, value in launch.env.items()}
    job.env = {name: (kept(Word(value, line)).value, line) for name, (value, line) in job.env.items()}
