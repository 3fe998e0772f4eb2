"""The files that ship with the package: templates, site profiles, image recipes.

In a wheel they lie in `hpc_launch/_data/` (pyproject.toml, force-include); in a checkout and an editable install they
are the top-level folders beside the package.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(folder: str) -> Path:
    """The shipped folder of that name, such as `slurm_templates`. Raises FileNotFoundError for a broken install."""
    for candidate in (_PACKAGE / "_data" / folder, _PACKAGE.parent / folder):
        if candidate.is_dir():
            return candidate
    message = f"the installation lacks its folder {folder}; install hpc-launch again"
    raise FileNotFoundError(message)
