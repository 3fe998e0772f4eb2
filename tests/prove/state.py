"""What is known of the proofs, and what failed ones left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.cluster.requirements import REPOSITORY
from tests.cluster.syscalls import locked
from tests.slurm.user import User

PLACE = REPOSITORY / ".test-logs" / "prove"
"""Where outcomes and what failed rows left behind are kept, outside git."""


class State:
    """What is known so far, in a file, so that an interrupted proof goes on where it was."""

    def __init__(self, path: Path = PLACE / "state.json") -> None:
        """Read what is there."""
        self.path = path
        self.data: dict[str, Any] = {"rows": {}}
        self._read()

    def _read(self) -> None:
        if self.path.exists():
            self.data.update(json.loads(self.path.read_text()))

    def keep(self, group: str, key: str, value: Any) -> None:
        """Put a result on file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Other rounds and other parts may run beside this one.
        with locked(self.path.with_suffix(".lock")):
            self._read()
            self.data.setdefault(group, {})[key] = value
            draft = self.path.with_suffix(".draft")
            draft.write_text(json.dumps(self.data, indent=1))
            draft.replace(self.path)


def keep_remains(user: User, name: str) -> None:
    """What a failed row or round left behind, for whoever looks into it."""
    place = PLACE / name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(user.home, place, symlinks=True, ignore_dangling_symlinks=True, ignore=_large)
    (place / "cluster.log").write_text(user.cluster.logs(80))


def _large(folder: str, names: list[str]) -> set[str]:
    paths = {name: Path(folder) / name for name in names}
    return {
        name for name, path in paths.items() if path.suffix == ".sif" or (path.is_file() and path.stat().st_size > 2e6)
    }
