"""Convert a script: read it, draft the job file and the site part, and plan the result."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.findings import Place
from hpc_launch.from_script.draft_job import draft_job, job_name
from hpc_launch.from_script.draft_site import SitePart, accounts_for, known_site, own_profile
from hpc_launch.from_script.prepare_elsewhere import prepare_elsewhere
from hpc_launch.from_script.read_job import OldScript, read_old_script
from hpc_launch.from_script.write_files import job_text, site_text
from hpc_launch.prepare.detect_site import detect_site
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.sites.load_profile import load_site_profile
from hpc_launch.sites.search_path import is_file_name


class Conversion(Struct, frozen=True):
    """A script as a job file. `site_file` is the text of its own site profile; None if its site is known."""

    script: OldScript
    site: SitePart
    output: Path
    job_file: str
    site_path: Path
    site_file: str | None

    def prepare(self) -> PreparedJob:
        """The job as hpc-launch would submit it. Raises Refused with what has to be corrected first."""
        with tempfile.TemporaryDirectory(prefix="hpc-launch-init-") as folder:
            job = Path(folder, self.output.name)
            job.write_text(self.job_file, encoding="utf-8")
            named: str | None = None
            if self.site_file is not None:
                profile = Path(folder, self.site_path.name)
                profile.write_text(self.site_file, encoding="utf-8")
                named = str(profile)
            elif self.site.profile is not None and self.site.reference is not None:
                named = self.site.reference
                if is_file_name(named):
                    named = str((self.output.parent / named).resolve())
            base = str(self.output.parent.resolve())
            return prepare_elsewhere(job, self.output.parent, site=named, job_folder=base, anywhere=True)


def convert(
    path: Path, *, output: Path | None, site: str | None, environment: Mapping[str, str], folder: str
) -> Conversion:
    """Convert the script that is submitted in `folder`. Raises UsageError if it is not a shell script, and Refused for
    an invalid site profile.

    Args: path: the script. output: the job file; by default beside the shell's folder. site: the site profile; detected
    if None. environment: of this shell.
    """
    script = read_old_script(path, folder, environment)
    stem = job_name(path.stem)
    output = output if output is not None else Path(f"{stem}.yaml")
    site_path = output.with_name(f"{output.stem}.site.yaml")
    part = _known(script, site, environment.get("HPC_LAUNCH_SITE"), output)
    if part is None:
        part = own_profile(script, job_name(output.stem).lower(), site_path.name)
    if part.profile is not None:
        script = replace(script, accounts=accounts_for(script, part.profile))
    prefix = os.path.relpath(folder, output.parent.resolve())
    draft = draft_job(script, part, "" if prefix == "." else prefix)
    own = site_text(script, part) if part.profile is None else None
    return Conversion(script, part, output, job_text(script, draft, part), site_path, own)


def _known(script: OldScript, site: str | None, usual: str | None, output: Path) -> SitePart | None:
    """The part for a named, usual or detected Slurm site; None if there is none."""
    if site is not None:
        profile = load_site_profile(site, Place("--site"), output.parent)
        reference = site
        if is_file_name(site):
            reference = os.path.relpath(Path(site).resolve(), output.parent.resolve())
            reference = reference if reference.startswith("..") else f"./{reference}"
        return known_site(script, profile, reference)
    if usual:
        return known_site(script, load_site_profile(usual, Place("$HPC_LAUNCH_SITE"), output.parent), None)
    found = detect_site(output.parent).chosen
    if found is None or found.name == "local":
        return None
    profile = load_site_profile(found.name, Place("the detected site"), output.parent)
    return known_site(script, profile, None) if profile.scheduler.type == "slurm" else None
