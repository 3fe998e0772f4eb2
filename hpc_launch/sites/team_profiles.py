"""Profiles that a team shares: which ones the user added, where they lie, and what a pinned copy was made from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.files import read_json
from hpc_launch.base.user_dirs import config_folder

PINNED = "pinned"
"""A link in a team's folder: to the copy of the revision in use (relative), or to a folder of others (absolute)."""
BELOW = ".below"
"""In a pinned copy: what its profiles extend outside of it, as it was then; a folder for each layer, nearest first."""
SCRIPTS = ".scripts"
"""In a pinned copy: what its profiles rendered then."""
RECORD = "team.json"


class Team(Struct, frozen=True):
    """What was added: a repository at a commit, or a folder, which is read as it is."""

    name: str
    url: str
    """The repository, or the folder."""
    revision: str | None = None
    """As it was asked for: a branch, a tag, a commit. None for a folder."""
    commit: str | None = None
    on: str = ""
    """The day it was pinned."""
    version: str = ""
    """The hpc-launch that pinned it."""

    @property
    def folder(self) -> Path:
        """The folder with its profiles."""
        return teams_folder() / self.name / PINNED


def teams_folder() -> Path:
    """A folder for each team, by its name."""
    return config_folder() / "teams"


def added() -> Iterator[tuple[str, Path]]:
    """(layer, folder) of what was added, by name: pinned repositories, then shared folders."""
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


def teams() -> list[Team]:
    """All that was added, by name."""
    return [team for name in _names() if (team := team_called(name)) is not None]


def team_called(name: str) -> Team | None:
    """What was added under a name; None where nothing was, or where its record is torn."""
    held = read_json(teams_folder() / name / RECORD)
    if held is None or not isinstance(held.get("url"), str):
        return None

    def text(key: str) -> str | None:
        value = held.get(key)
        return value if isinstance(value, str) else None

    revision, commit = text("revision"), text("commit")
    return Team(name, held["url"], revision, commit, text("on") or "", text("version") or "")


def _names() -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(teams_folder()) if not entry.name.startswith("."))
    except OSError:
        return []


def pinned_below(child: Path) -> list[Path]:
    """The copies of what the pinned profile `child` extends outside of its team, by layer; none for other profiles."""
    for folder in (child.parent, *child.parent.parents[:3]):
        try:
            return sorted((folder / BELOW).iterdir())
        except OSError:
            continue
    return []
