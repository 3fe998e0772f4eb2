"""Install the pinned copy of a team's profiles, with the parents and scripts that belong to it."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from msgspec.structs import asdict

from hpc_launch.base.files import write_json
from hpc_launch.base.user_dirs import make_private
from hpc_launch.site_tools.golden_jobs import golden_scripts
from hpc_launch.sites import trust
from hpc_launch.sites.code_values import values_requiring_trust
from hpc_launch.sites.layers import BASES, chain, parsed_layer
from hpc_launch.sites.search_path import ENDING, search_path
from hpc_launch.sites.team_profiles import BELOW, PINNED, RECORD, SCRIPTS, Team, teams_folder


def profiles_in(folder: Path) -> list[Path]:
    """Systems and templates in a folder, without its bases."""
    return sorted(path for path in folder.glob(f"*{ENDING}") if os.path.isfile(path))


def current_parent_folders(name: str) -> list[Path]:
    """Folders in which a team's profiles look up parents, besides their own: other teams', the machine's and the
    shipped ones."""
    own = {"user", "project", "HPC_LAUNCH_SITE_PATH", f"team {name}", f"shared {name}"}
    return [folder for layer, folder in search_path() if layer not in own]


def install(team: Team, files: dict[tuple[str, ...], str]) -> Team:
    """Write a new copy next to the current one, then switch the link, so that concurrent jobs see one of the two."""
    home = make_private(teams_folder() / team.name)
    previous = os.path.join(home, os.readlink(home / PINNED)) if (home / PINNED).is_symlink() else None
    new = home / f"{(team.commit or '')[:12]}-{secrets.token_hex(4)}"
    new.mkdir(mode=0o700)
    try:
        write_files(new, files)
        _copy_parents(team.name, new)
        _render_scripts(new)
        set_link(home, new.name)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    write_json(home / RECORD, asdict(team))
    if previous is not None:
        shutil.rmtree(previous, ignore_errors=True)
    return team


def write_files(folder: Path, files: dict[tuple[str, ...], str]) -> None:
    """Write profiles by their path below `folder`."""
    for parts, text in files.items():
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", "surrogateescape")


def _copy_parents(name: str, folder: Path) -> None:
    """Copy parents from other folders, by layer, so that an upgrade does not change the profiles."""
    layers = current_parent_folders(name)
    for profile in profiles_in(folder):
        for layer in chain(profile, [], folders=layers):
            home = layer.path.parent.parent if layer.path.parent.name == BASES else layer.path.parent
            if home not in layers:
                continue
            copy_path = folder / BELOW / f"{layers.index(home):02d}" / layer.path.relative_to(home)
            copy_path.parent.mkdir(parents=True, exist_ok=True)
            copy_path.write_text(layer.document.text, "utf-8", "surrogateescape")
            if layer.trusted and any(values_requiring_trust(parsed_layer(layer.path, layer.document).data)):
                trust.trust([layer.document.text])  # the copy has the same content at another place


def _render_scripts(folder: Path) -> None:
    for profile in profiles_in(folder):
        for golden in golden_scripts(profile, (), None):
            if golden.script is not None:
                path = folder / SCRIPTS / profile.stem / f"{golden.job}.sh"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(golden.script, "utf-8")


def set_link(home: Path, target: str) -> None:
    """Switch the link atomically."""
    link = home / f".{PINNED}.{secrets.token_hex(4)}"
    link.symlink_to(target)
    os.replace(link, home / PINNED)
