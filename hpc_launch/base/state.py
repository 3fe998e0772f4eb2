"""The user's state folder on this host's view of the home: index, cached answers, fault reports."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """`$XDG_STATE_HOME/hpc-launch`, by default `~/.local/state/hpc-launch`; it may not exist yet."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "hpc-launch"
