"""The runs that `prune` deleted: a line for each in the user's state folder, for questions about them."""

from __future__ import annotations

import time
from pathlib import Path

from hpc_launch.base.json_records import file_lines
from hpc_launch.base.user_dirs import make_private

FILE = "pruned"


def remember(state_folder: Path, run: str, state: str) -> None:
    """Add a run before it is deleted. Raises OSError."""
    with open(make_private(state_folder) / FILE, "a", encoding="utf-8") as stream:
        stream.write(f"{run} was {state}, and was deleted by `hpc-launch prune` on {time.strftime('%Y-%m-%d %H:%M')}\n")


def pruned_runs(state_folder: Path) -> dict[str, str]:
    """What happened to each, in words, by its name."""
    lines = (line.decode("utf-8", "replace").strip() for line in file_lines(state_folder / FILE))
    return {line.partition(" ")[0]: line for line in lines}
