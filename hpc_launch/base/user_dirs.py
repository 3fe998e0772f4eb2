"""This user, by name, and the folders of theirs: state (index, cached answers, fault reports), configuration, cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/hpc-launch`, by default under `~/.local/state`. It need not exist."""
    return _xdg(environment, "XDG_STATE_HOME", ".local/state")


def config_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CONFIG_HOME/hpc-launch`, by default under `~/.config`: the user's own settings."""
    return _xdg(environment, "XDG_CONFIG_HOME", ".config")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/hpc-launch`, by default under `~/.cache`: what can be made anew."""
    return _xdg(environment, "XDG_CACHE_HOME", ".cache")


def make_private(folder: Path) -> Path:
    """Make `folder` and those above it, readable for nobody else. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def user() -> str:
    """The name of whoever this is, or the number where there is no name for it."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())


def _xdg(environment: Mapping[str, str], name: str, default: str) -> Path:
    """As the XDG base directory specification has it: a value that is not absolute does not count."""
    given = environment.get(name, "")
    base = given if given.startswith("/") else os.path.join(environment.get("HOME") or os.path.expanduser("~"), default)
    return Path(base) / "hpc-launch"
