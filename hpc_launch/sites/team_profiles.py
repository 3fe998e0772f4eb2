"""Profiles shared by a team: which ones the user added, where they are, and from what a pinned copy was made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.json_records import read_record
from hpc_launch.base.user_dirs import config_folder

PINNED = "pinned"
"""A link in a team's folder: to the copy of the pinned revision (relative), or to a shared folder (absolute)."""
BELOW = ".below"
"""Folder in a pinned copy with the profiles that it extends from other sources, as of the pinning. One folder per
layer, nearest first."""
SCRIPTS = ".scripts"
"""Folder in a pinned copy with the scripts that its profiles rendered at that time."""
RECORD = "team.json"


class Team(Struct, frozen=True):
    """team.json, a source of profiles: a repository at a commit, or a folder, which is read directly."""

    name: str
    url: str
    """The repository or folder."""
    revision: str | None = None
    """The requested branch, tag or commit. None for a folder."""
    commit: str | None = None
    on: str = ""
    """Date of the pinning."""
    version: str = ""
    """hpc-launch version that pinned it."""

    @property
    def folder(self) -> Path:
        """Folder with its profiles."""
        return teams_folder() / self.name / PINNED


def teams_folder() -> Path:
    """Folder with one subfolder per team."""
    return config_folder() / "teams"


def team_folders() -> Iterator[tuple[str, Path]]:
    """(layer, folder) of all added sources, by name: pinned repositories, then shared folders."""
    shared = []
    for name in _names():
        pinned = teams_folder() / name / PINNED
        try:
            target = os.readlink(pinned)
        except OSError:
            continue
        if os.path.isabs(target):
            shared.append((f"shared {name}", pinned))
        else:
            yield f"team {name}", pinned
    yield from shared


def shared_folders() -> Iterator[Path]:
    """The added folders, which are read in place."""
    yield from (folder for layer, folder in team_folders() if layer.startswith("shared "))


def teams() -> list[Team]:
    """All added sources, by name."""
    return [team for name in _names() if (team := find_team(name)) is not None]


def find_team(name: str) -> Team | None:
    """The source added under a name. None if there is none, or if its record is damaged."""
    record = read_record(teams_folder() / name / RECORD, Team)
    return None if record is None else replace(record, name=name)


def _names() -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(teams_folder()) if not entry.name.startswith("."))
    except OSError:
        return []


def pinned_parents(child: Path) -> list[Path]:
    """Copies of what the pinned profile `child` extends from other sources, by layer. Empty for other profiles."""
    for folder in (child.parent, *child.parent.parents[:3]):
        try:
            return sorted((folder / BELOW).iterdir())
        except OSError:
            continue
    return []
