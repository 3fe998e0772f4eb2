"""Where this user's own small files of the schedulers lie: private, and never the truth about a run."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """$XDG_STATE_HOME/hpc-launch, by default ~/.local/state/hpc-launch (XDG base directory specification).

    It need not exist. An XDG_STATE_HOME that is not absolute does not count, as the specification has it.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.local/state").expanduser()
    return base / "hpc-launch"


def make_private(folder: Path) -> Path:
    """Make `folder` and those above it, readable for nobody else. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
