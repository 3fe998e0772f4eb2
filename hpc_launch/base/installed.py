"""The installed package: its files, commands that start its modules, and what a run folder gets of agent/."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
from functools import cache
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from typing import Any

from hpc_launch.agent import WITHOUT_CURRENT_FOLDER

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(folder: str) -> Path:
    """A shipped folder by name, such as `slurm_templates`. Raises FileNotFoundError if the installation is broken."""
    for candidate in (_PACKAGE / "_data" / folder, _PACKAGE.parent / folder):
        if os.path.isdir(candidate):
            return candidate
    message = f"the installation is incomplete: folder {folder} not found; reinstall hpc-launch"
    raise FileNotFoundError(message)


@cache
def read_shipped(path: Path, kind: Any) -> Any:
    """The content of a file as this type. Raises FileNotFoundError for a broken install.

    With libyaml where available: ten times as fast. Both loaders create plain values only.
    """
    import yaml

    from hpc_launch.base.json_records import as_type

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return as_type(yaml.load(path.read_text("utf-8"), Loader=loader), kind)  # noqa: S506


_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def module_command(module: str) -> list[str]:
    """The command `python -m MODULE` with this interpreter, without the current folder in `sys.path`."""
    return [sys.executable, "-c", f"{WITHOUT_CURRENT_FOLDER}{_RUN_MODULE}", module]


AGENT = Path(__file__).parents[1] / "agent"
ARCHIVE = "agent.pyz"
HOOKS = AGENT / "hpc_launch_hooks.py"
PHASES = AGENT / "sitecustomize.py"
"""On the PYTHONPATH of a training, and therefore files of their own."""

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
    import zipfile

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
