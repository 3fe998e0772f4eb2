"""Make many folders of finished runs, quickly: hard links to the records of a few real runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

SPACING_S = 60.0
"""Time between the creation of two runs."""


def make_finished_runs(templates: Sequence[Path], folder: Path, count: int) -> None:
    """Create `count` run folders in `folder`, each a copy of one of the `templates` with a name of its own.

    The records of the attempts are hard links to the template's, so all must be on one file system.
    """
    files = [_files(template) for template in templates]
    infos = [json.loads((template / "run.json").read_text()) for template in templates]
    newest = time.time() - 24 * 3600.0
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        created = newest - number * SPACING_S
        stamp = time.strftime("%y%m%d-%H%M%S", time.gmtime(created))
        at = number % len(templates)
        name = f"{infos[at]['name']}-{stamp}-{number:06x}"
        run = f"{folder}/{name}"
        for path in ("", "/attempts", "/attempts/001", "/attempts/001/logs"):
            os.mkdir(run + path)
        for path in files[at]:
            os.link(templates[at] / path, f"{run}/{path}")
        with open(f"{run}/run.json", "w", encoding="utf-8") as stream:
            json.dump(infos[at] | {"run": name, "created": created}, stream)


def _files(template: Path) -> list[str]:
    """The files that every run has, without those that only its next attempt would read."""
    paths = (path for part in ("attempts/001", "attempts/001/logs") for path in sorted((template / part).iterdir()))
    return [str(path.relative_to(template)) for path in paths if path.is_file()] + ["job.yaml"]
