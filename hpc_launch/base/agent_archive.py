"""The one file with all programs of agent/ that the hosts of a job start."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from functools import cache
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path

from hpc_launch.base.installed import AGENT, HOOKS, PHASES

_MAIN = "from hpc_launch.agent import main\n\nmain()\n"
_OLDEST = (1980, 1, 1, 0, 0, 0)


def _compiled(path: Path, source: bytes) -> bytes | None:
    """The module as this Python has compiled it, if it has, with a header without a time (PEP 552). A Python of another
    version compiles the source beside it (zipimport)."""
    state = path.stat()
    wanted = MAGIC_NUMBER + struct.pack("<III", 0, int(state.st_mtime) & 0xFFFFFFFF, state.st_size & 0xFFFFFFFF)
    with contextlib.suppress(OSError):
        data = Path(cache_from_source(path)).read_bytes()
        if data.startswith(wanted):
            return MAGIC_NUMBER + struct.pack("<I", 1) + source_hash(source) + data[len(wanted) :]
    return None


@cache
def agent_archive() -> bytes:
    """The zipapp: `python3 -I agent.pyz NAME ARGUMENTS`. The same bytes for the same sources, once these are
    compiled. Raises OSError."""
    files: dict[str, bytes | None] = {"__main__.py": _MAIN.encode(), "hpc_launch/__init__.py": b""}
    for path in sorted(AGENT.glob("*.py")):
        if path not in (HOOKS, PHASES):
            source = path.read_bytes()
            files[f"hpc_launch/agent/{path.name}"] = source
            files[f"hpc_launch/agent/{path.name}c"] = _compiled(path, source)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            if data is None:
                continue
            entry = zipfile.ZipInfo(name, _OLDEST)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=1)
    return stream.getvalue()
