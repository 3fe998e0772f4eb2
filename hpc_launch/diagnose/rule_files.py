"""Read the YAML files of `rules/` that come with hpc-launch."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from hpc_launch.base.installed import read_shipped

FOLDER = Path(__file__).resolve().parent / "rules"
"""The shipped rules; `meanings/` holds what does not depend on words."""


def read_rules(name: str, kind: Any) -> Any:
    """The content of a file as this type. Raises FileNotFoundError for a broken install."""
    return read_shipped(FOLDER / name, kind)


@cache
def line_pattern(name: str) -> re.Pattern[str]:
    """The expression of this name in `meanings/lines.yaml`."""
    return re.compile("".join(read_rules("meanings/lines.yaml", dict[str, list[str]])[name]))
