"""Convert a script: read all of it, draft the job file and the site part, and plan the result."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Finding, Place
from hpc_launch.from_script.draft import SitePart, accounts_for, job_name, job_text, known_site, own_profile, site_text
from hpc_launch.from_script.old_job import LaunchSize, OldJob, OldLaunch, OldScript, choose, launch_size
from hpc_launch.from_script.script_text import Ledger, ScriptText, Word, parse, read_script, take_out
from hpc_launch.from_script.slurm_request import Request
from hpc_launch.from_script.statements import Reader
from hpc_launch.from_script.variables import Variables
from hpc_launch.job.container import SECRET_NAME
from hpc_launch.prepare.prepare import PreparedJob, detect_site, prepare_job
from hpc_launch.sites.read_profile import load_site_profile
from hpc_launch.sites.search_path import is_file_name

_PLACEHOLDER = re.compile(r"<([A-Z][A-Z0-9]*(?:[_-][A-Z0-9]+)+)>")
"""`<YOUR_ACCOUNT>` of an example, which bash would take for redirections."""


class Conversion(Struct, frozen=True):
    """A script as a job file. `site_file` is the text of its own site profile; None if its site is known."""

    script: OldScript
    site: SitePart
    output: Path
    job_file: str
    site_path: Path
    site_file: str | None

    @property
    def files(self) -> dict[Path, str]:
        """The files to write."""
        own = {} if self.site_file is None else {self.site_path: self.site_file}
        return {self.output: self.job_file, **own}

    def prepare(self) -> PreparedJob:
        """The job as hpc-launch would submit it. Raises Refused with what has to be corrected first."""
        site = self.site.reference
        if site is not None and self.site_file is None and is_file_name(site):
            site = str((self.output.parent / site).resolve())
        return prepare_files(self.files, self.output, site, anywhere=True)


def prepare_files(files: Mapping[Path, str], output: Path, site: str | None, **options: Any) -> PreparedJob:
    """Plan the job file `output` before these files are written; findings name their final places. Raises Refused.
    `site`: a profile, which may be one of the files."""
    with tempfile.TemporaryDirectory(prefix="hpc-launch-init-") as folder:
        for path, text in files.items():
            Path(folder, path.name).write_text(text, encoding="utf-8")

        def moved(finding: Finding) -> Finding:
            place = finding.place
            if place is None or not place.file.startswith(f"{folder}/"):
                return finding
            at = str(output.parent / place.file.removeprefix(f"{folder}/"))
            return replace(finding, place=replace(place, file=at))

        named = str(Path(folder, site)) if site in {path.name for path in files} else site
        try:
            base = str(output.parent.resolve())
            prepared = prepare_job(Path(folder, output.name), site=named, job_folder=base, **options)
        except Refused as refused:
            raise Refused([moved(finding) for finding in refused.findings]) from None
        return replace(prepared, warnings=tuple(map(moved, prepared.warnings)))


def convert(
    path: Path, *, output: Path | None, site: str | None, environment: Mapping[str, str], folder: str
) -> Conversion:
    """Convert the script that is submitted in `folder`. Raises UsageError if it is not a shell script, and Refused for
    an invalid site profile.

    Args: path: the script. output: the job file; by default beside the shell's folder. site: the site profile; detected
    if None. environment: of this shell.
    """
    script = read_old_script(path, folder, environment)
    output = output if output is not None else Path(f"{job_name(path.stem)}.yaml")
    site_path = output.with_name(f"{output.stem}.site.yaml")
    part = _known(script, site, environment.get("HPC_LAUNCH_SITE"), output)
    if part is None:
        part = own_profile(script, job_name(output.stem).lower(), site_path.name)
    elif part.profile is not None:
        script = replace(script, accounts=accounts_for(script, part.profile))
    prefix = os.path.relpath(folder, output.parent.resolve())
    text = job_text(script, part, "" if prefix == "." else prefix)
    return Conversion(script, part, output, text, site_path, site_text(script, part) if part.profile is None else None)


def _known(script: OldScript, site: str | None, usual: str | None, output: Path) -> SitePart | None:
    """The part for a named, usual or detected Slurm site; None if there is none."""
    reference, place, name = None, Place("$HPC_LAUNCH_SITE"), usual
    if site is not None:
        reference, place, name = site, Place("--site"), site
        if is_file_name(site):
            reference = os.path.relpath(Path(site).resolve(), output.parent.resolve())
            reference = reference if reference.startswith("..") else f"./{reference}"
    elif not usual:
        found = detect_site(output.parent).chosen
        place, name = Place("the detected site"), found.name if found is not None and found.name != "local" else None
    if name is None:
        return None
    profile = load_site_profile(name, place, output.parent)
    return known_site(script, profile, reference) if site or usual or profile.scheduler.type == "slurm" else None


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
