"""What a run folder gets of hpc_launch/agent/: `agent.pyz`, one file with its programs, and what a training imports."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

AGENT = Path(__file__).parents[1] / "agent"
ARCHIVE = "agent.pyz"
HOOKS = AGENT / "hpc_launch_hooks.py"
PHASES = AGENT / "sitecustomize.py"
"""On the PYTHONPATH of a training, and therefore files of their own."""
_MAIN = "from hpc_launch.agent.__main__ import main\n\nmain()\n"
_OLDEST = (1980, 1, 1, 0, 0, 0)


@cache
def agent_archive() -> bytes:
    """The zipapp: `python3 -I agent.pyz NAME ARGUMENTS`. The same bytes for the same sources. Raises OSError."""
    files = {"__main__.py": _MAIN, "hpc_launch/__init__.py": ""}
    for path in sorted(AGENT.glob("*.py")):
        if path not in (HOOKS, PHASES):
            files[f"hpc_launch/agent/{path.name}"] = path.read_text("utf-8")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name, _OLDEST)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text, compresslevel=1)
    return stream.getvalue()
