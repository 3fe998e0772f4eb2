"""Inspect an image by running `probe_script.py` with a Python inside it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_launch.base.errors import UserError
from hpc_launch.base.python_command import WITHOUT_CURRENT_FOLDER
from hpc_launch.images.apptainer_tool import Tool, find_tool

MARK = "HPC-LAUNCH-PROBE "
TIMEOUT = 300.0
"""Seconds per probe; starting a large image from a cold file system and importing torch takes about a minute."""


def probe_image(
    before: Sequence[str],
    python: str,
    request: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
    prelude: str = "",
) -> dict[str, Any]:
    """Run the probe script and return its answer.

    Args:
        before: The command prefix that starts the container.
        python: The Python to use inside.
        request: What to probe_image for (see `probe_script.py`).
        environment: Additional variables.
        prelude: Lines of bash to run first inside.

    Raises UserError if the image does not start or has no such Python.
    """
    # A container often starts in the folder of the job, from which nothing must be imported.
    start = f"{WITHOUT_CURRENT_FOLDER}exec(sys.argv.pop(1))"
    probe_command = [python, "-c", start, probe_code(), json.dumps(request)]
    inside = ["bash", "-c", f'{prelude}exec "$@"', "bash", *probe_command] if prelude else probe_command
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
        raise UserError(f"cannot run {before[0]}: {error.strerror}", "load its module first") from error
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"the image did not respond within {TIMEOUT:g} s", "try again on a less busy machine"
        ) from error
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return answer
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith(("INFO:", "WARNING:"))]
    raise UserError(lines[-1] if lines else f"exit code {done.returncode}, no output")


def probe_code() -> str:
    """The source of the probe script."""
    return Path(__file__).with_name("probe_script.py").read_text(encoding="utf-8")


def versions_in(tool: Tool | None, image: Path) -> dict[str, str]:
    """Versions of Python, PyTorch and related packages in an image; empty if it cannot be run here."""
    with suppress(UserError):
        tool = tool or find_tool(purpose="inspect it")
        before = [tool.path, "exec", "--no-home", str(image)]
        answer = probe_image(before, "python3", {})
        return {"python": answer["python"], **answer["packages"], **_gpu_platform(answer["torch"])}
    return {}


def _gpu_platform(torch: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key in ("cuda", "hip") if (value := torch.get(key))}
