"""Search path of site profiles, from the nearest to the shipped ones, with those of teams; look-up by name or file."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused
from hpc_launch.base.files import config_folder
from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.base.installed import shipped
from hpc_launch.base.json_records import read_record
from hpc_launch.job.type_hints import NAME_PATTERN

RECORD = "team.json"


class Team(Struct, frozen=True):
    """team.json, a source of profiles: a repository at a commit, or a folder, which is read directly."""

    name: str
    url: str
    """The repository or folder."""
    revision: str | None = None
    """The requested branch, tag or commit. None for a folder."""
    commit: str | None = None

    @property
    def folder(self) -> Path:
        """Folder with its profiles: the copy of the commit, or the shared folder itself."""
        return Path(self.url) if self.commit is None else teams_folder() / self.name / self.commit


def teams_folder() -> Path:
    """Folder with one subfolder per team."""
    return config_folder() / "teams"


def team_folders() -> Iterator[tuple[str, Path]]:
    """(layer, folder) of all added sources, by name: copies of repositories, then shared folders."""
    added = teams()
    yield from ((f"team {team.name}", team.folder) for team in added if team.commit is not None)
    yield from ((f"shared {team.name}", team.folder) for team in added if team.commit is None)


def teams() -> list[Team]:
    """All added sources, by name."""
    try:
        names = sorted(entry.name for entry in os.scandir(teams_folder()) if not entry.name.startswith("."))
    except OSError:
        return []
    return [team for name in names if (team := find_team(name)) is not None]


def find_team(name: str) -> Team | None:
    """The source added under a name. None if there is none, or if its record is damaged."""
    record = read_record(teams_folder() / name / RECORD, Team)
    return None if record is None else replace(record, name=name)


ENDING = ".yaml"
BASES = "bases"
"""Subfolder in which profiles named by `extends` are also looked up."""
PROJECT = Path(".hpc-launch", "sites")
"""Folder of a project's own profiles."""
OWN_LAYERS = frozenset({"user", "machine", "shipped"})
MAX_PROFILE_BYTES = 256 << 10
MAX_BYTES_OF_OTHERS = 1 << 20
"""Limits on each file and on all files that are read of a folder of others to detect the site or to list it, a few
seconds of work."""


def search_path(project: Path | None = None) -> Iterator[tuple[str, Path]]:
    """(layer, folder), nearest first. The first folder that contains a name wins.

    The layers are `user`, `project` (of the job file's folder, by default the current one), `HPC_LAUNCH_SITE_PATH`,
    `team NAME` (a repository at a commit), `shared NAME` (a folder), `machine` and `shipped`.
    """
    yield "user", config_folder() / "sites"
    yield from project_folder(project)
    for folder in os.environ.get("HPC_LAUNCH_SITE_PATH", "").split(os.pathsep):
        if folder:
            yield "HPC_LAUNCH_SITE_PATH", Path(folder)
    yield from team_folders()
    yield "machine", Path("/etc/hpc-launch/sites")
    yield "shipped", shipped("site_configs")


def search_folders(project: Path | None = None) -> list[Path]:
    """The folders of the search path."""
    return [folder for _, folder in search_path(project)]


def project_folder(start: Path | None = None) -> Iterator[tuple[str, Path]]:
    """`.hpc-launch/sites` in `start` or a parent folder, up to the root of the git repository.

    A folder with another owner than `start` is ignored, because others can write to folders such as /tmp.
    """
    try:
        first = start.absolute() if start else Path.cwd()
        owner = first.stat().st_uid
        folders = (first, *first.parents)
        top = next((at for at, folder in enumerate(folders) if os.path.exists(folder / ".git")), 0)
        for folder in folders[: top + 1]:
            candidate = folder / PROJECT
            if os.path.isdir(candidate) and candidate.stat().st_uid == owner:
                yield "project", candidate
                return
    except OSError:
        return


def find_profile(name: str, asked_at: Place | None, project: Path | None = None) -> Path:
    """The file of a site. `name` is a profile name on the search path, or a file.

    Raises Refused with the most similar name if there is none.
    """
    if is_file_name(name):
        path = Path(os.path.expanduser(name))
        if os.path.isfile(path):
            return path
        message = f"site profile file {name} not found"
        raise Refused([Finding(FindingCode.UNKNOWN_SITE, message, asked_at, "check the path")])
    for _, folder in search_path(project):
        path = folder / f"{name}{ENDING}"
        if os.path.isfile(path):  # Path.is_file raises for folders without search permission
            return path
        if os.path.lexists(path):
            message, hint = f"site profile {path} is not a file", "replace this folder or broken link by a file"
            raise Refused([Finding(FindingCode.UNKNOWN_SITE, message, asked_at, hint)])
    import difflib  # for the message only

    names = profile_names(project)
    closest = difflib.get_close_matches(name, names, 1, cutoff=0.7)
    hint = f"did you mean `{closest[0]}`?" if closest else f"known sites: {', '.join(names)}"
    missing = [layer for layer, folder in team_folders() if not os.path.isdir(folder)]
    if missing:
        hint = f"the profiles of {' and '.join(missing)} are missing: run `hpc-launch sites update`; {hint}"
    unreadable = [
        str(folder) for _, folder in search_path(project) if os.path.isdir(folder) and not _is_readable(folder)
    ]
    if unreadable:
        hint = f"no permission to read {' and '.join(unreadable)}; {hint}"
    raise Refused([Finding(FindingCode.UNKNOWN_SITE, f"site `{name}` not found", asked_at, hint)])


def find_profile_or_base(name: str) -> Path:
    """File of a profile or base. Raises Refused if there is none."""
    try:
        return find_profile(name, Place("NAME"))
    except Refused:
        places = [] if is_file_name(name) else [folder / BASES / f"{name}{ENDING}" for folder in search_folders()]
        base = next(filter(os.path.isfile, places), None)
        if base is None:
            raise
        return base


def _is_readable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def is_file_name(name: str) -> bool:
    """Whether a site is specified as a file instead of a name."""
    return "/" in name or name.endswith(ENDING)


class ProfileFile(Struct, frozen=True):
    """A file on the search path."""

    layer: str
    path: Path
    is_base: bool = False


def profile_files(project: Path | None = None, *, bases: bool = False) -> Iterator[ProfileFile]:
    """Every profile on the search path, nearest first, and those in `bases/`. Others may have a folder with very many
    or large files, of which only MAX_BYTES_OF_OTHERS are read."""
    for layer, folder in search_path(project):
        is_own = layer in OWN_LAYERS
        largest, left = (sys.maxsize, sys.maxsize) if is_own else (MAX_PROFILE_BYTES, MAX_BYTES_OF_OTHERS)
        for place in (folder, folder / BASES) if bases else (folder,):
            try:
                entries = sorted(os.scandir(place), key=lambda entry: entry.name)
                # A file counts as a block at least: very many small files take time, too.
                sizes = [(entry, max(entry.stat().st_size, 4096)) for entry in entries if entry.name.endswith(ENDING)]
            except OSError:
                continue
            for entry, size in sizes:
                if size <= min(largest, left):
                    left -= size
                    yield ProfileFile(layer, place / entry.name, place != folder)


def profile_names(project: Path | None = None) -> list[str]:
    """Names of all profiles on the search path."""
    # The shell inserts a name as it is when it completes `--site`.
    return sorted({one.path.stem for one in profile_files(project) if re.fullmatch(NAME_PATTERN, one.path.stem)})
