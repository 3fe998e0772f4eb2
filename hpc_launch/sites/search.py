"""Where site profiles lie: a search path from the nearest to the shipped, and a profile by name or file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding, Place
from hpc_launch.base.resources import shipped
from hpc_launch.base.state import config_folder

ENDING = ".yaml"


def search_path() -> Iterator[tuple[str, Path]]:
    """(layer, folder), the first that holds a name wins: `$HPC_LAUNCH_SITE_PATH`, the user's, the machine's, ours."""
    for folder in os.environ.get("HPC_LAUNCH_SITE_PATH", "").split(os.pathsep):
        if folder:
            yield "HPC_LAUNCH_SITE_PATH", Path(folder)
    yield "user", config_folder() / "sites"
    yield "machine", Path("/etc/hpc-launch/sites")
    yield "shipped", shipped("site_configs")


def find_profile(name: str, asked_at: Place | None) -> Path:
    """The file of a site: `name` is a profile's name on the search path, or a path to a file.

    Raises Refused where there is none, naming the nearest one.
    """
    if "/" in name or name.endswith(ENDING):
        path = Path(name).expanduser()
        if path.is_file():
            return path
        raise Refused([Finding("HL301", f"there is no site profile {name}", asked_at, "check the path")])
    for _, folder in search_path():
        path = folder / f"{name}{ENDING}"
        if path.is_file():
            return path
    known = profile_names()
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
    raise Refused([Finding("HL301", f"there is no site `{name}`", asked_at, hint)])


def profile_names() -> list[str]:
    """The names of all profiles on the search path."""
    names: set[str] = set()
    for _, folder in search_path():
        try:
            names.update(entry.name[: -len(ENDING)] for entry in os.scandir(folder) if entry.name.endswith(ENDING))
        except OSError:
            continue
    return sorted(names)
