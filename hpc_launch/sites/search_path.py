"""Where site profiles lie: a search path from the nearest to the shipped, and a profile by name or file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from hpc_launch.base.errors import Refused
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.base.resources import shipped
from hpc_launch.base.user_dirs import config_folder
from hpc_launch.sites.team_profiles import added

ENDING = ".yaml"
PROJECT = Path(".hpc-launch", "sites")
"""Where a project keeps profiles of its own."""


def search_path(project: Path | None = None) -> Iterator[tuple[str, Path]]:
    """(layer, folder), the nearest first; the first that holds a name wins.

    `user`, `project` (that of the folder of the job file, by default of the current one), `HPC_LAUNCH_SITE_PATH`,
    `team NAME` (a pinned repository), `shared NAME` (a folder), `machine`, `shipped`.
    """
    yield "user", config_folder() / "sites"
    yield from project_folder(project)
    for folder in os.environ.get("HPC_LAUNCH_SITE_PATH", "").split(os.pathsep):
        if folder:
            yield "HPC_LAUNCH_SITE_PATH", Path(folder)
    yield from added()
    yield "machine", Path("/etc/hpc-launch/sites")
    yield "shipped", shipped("site_configs")


def project_folder(start: Path | None = None) -> Iterator[tuple[str, Path]]:
    """`.hpc-launch/sites` in `start` or a folder above it, up to the top of the git repository around it.

    One that belongs to somebody else than `start` does is not taken: others can write to a folder such as /tmp.
    """
    try:
        first = start.absolute() if start else Path.cwd()
        owner = first.stat().st_uid
        folders = (first, *first.parents)
        top = next((at for at, folder in enumerate(folders) if (folder / ".git").exists()), 0)
        for folder in folders[: top + 1]:
            found = folder / PROJECT
            if os.path.isdir(found) and found.stat().st_uid == owner:
                yield "project", found
                return
    except OSError:
        return


def find_profile(name: str, asked_at: Place | None, project: Path | None = None) -> Path:
    """The file of a site: `name` is a profile's name on the search path, or a path to a file.

    Raises Refused where there is none, naming the nearest one.
    """
    if is_file_name(name):
        path = Path(os.path.expanduser(name))
        if os.path.isfile(path):
            return path
        raise Refused(
            [Finding(FindingCode.UNKNOWN_SITE, f"there is no site profile {name}", asked_at, "check the path")]
        )
    for _, folder in search_path(project):
        path = folder / f"{name}{ENDING}"
        if os.path.isfile(path):  # Path.is_file raises where a folder may not be entered
            return path
    known = profile_names(project)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
    gone = [layer for layer, folder in added() if not os.path.isdir(folder)]
    if gone:
        hint = f"the profiles of {' and '.join(gone)} are not there now: see `hpc-launch sites update`; {hint}"
    closed = [str(folder) for _, folder in search_path(project) if os.path.isdir(folder) and not _is_open(folder)]
    if closed:
        hint = f"you may not read {' and '.join(closed)}; {hint}"
    raise Refused([Finding(FindingCode.UNKNOWN_SITE, f"there is no site `{name}`", asked_at, hint)])


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def is_file_name(name: str) -> bool:
    """Whether a site is named by its file, not by its name on the search path."""
    return "/" in name or name.endswith(ENDING)


def profile_names(project: Path | None = None) -> list[str]:
    """The names of all profiles on the search path."""
    names: set[str] = set()
    for _, folder in search_path(project):
        try:
            names.update(entry.name[: -len(ENDING)] for entry in os.scandir(folder) if entry.name.endswith(ENDING))
        except OSError:
            continue
    return sorted(names)
