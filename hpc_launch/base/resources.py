"""Files shipped with the package: templates, site profiles, image recipes.

A wheel has them in `hpc_launch/_data/` (pyproject.toml, force-include); a checkout and an editable install, in
top-level folders beside the package.
"""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(folder: str) -> Path:
    """A shipped folder by name, such as `slurm_templates`. Raises FileNotFoundError if the installation is broken."""
    for candidate in (_PACKAGE / "_data" / folder, _PACKAGE.parent / folder):
        if os.path.isdir(candidate):
            return candidate
    message = f"the installation is incomplete: folder {folder} not found; reinstall hpc-launch"
    raise FileNotFoundError(message)
