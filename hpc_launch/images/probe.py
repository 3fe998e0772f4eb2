"""Looking into an image: `inner.py` is handed to a Python inside it, and what that prints is read."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_launch.base.errors import UserError
from hpc_launch.images.apptainer_tool import Tool, find_tool

MARK = "HPC-LAUNCH-PROBE "
TIMEOUT = 300.0
"""Seconds for one look; to start a large image from a cold file system and import torch takes a minute."""


def look(
    before: Sequence[str],
    python: str,
    asked: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
    prelude: str = "",
) -> dict[str, Any]:
    """What `inner.py` says where `before` starts the container. `prelude`: lines of bash that come first inside.

    Raises UserError where the image does not start, or has no such Python.
    """
    code = Path(__file__).with_name("probe_script.py").read_text(encoding="utf-8")
    words = [python, "-c", code, json.dumps(asked)]
    inside = ["bash", "-c", f'{prelude}exec "$@"', "bash", *words] if prelude else words
    command = [*before, *inside]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
            check=False,
        )
    except OSError as error:
        raise UserError(f"{before[0]} cannot be started: {error.strerror}", "load its module first") from error
    except subprocess.TimeoutExpired as error:
        raise UserError(f"the image said nothing for {TIMEOUT:g} s", "try it on a machine that is less busy") from error
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            said: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return said
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith(("INFO:", "WARNING:"))]
    raise UserError(lines[-1] if lines else f"it ended with exit code {done.returncode}")


def versions_in(tool: Tool | None, image: Path) -> dict[str, str]:
    """Versions of Python, PyTorch and their kin in an image, for its record; none where it cannot be asked here."""
    with suppress(UserError):
        tool = tool or find_tool(purpose="look into it")
        before = [tool.path, "exec", "--no-home", str(image)]
        said = look(before, "python3", {})
        return {"python": said["python"], **said["packages"], **_flavour(said["torch"])}
    return {}


def _flavour(torch: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key in ("cuda", "hip") if (value := torch.get(key))}
