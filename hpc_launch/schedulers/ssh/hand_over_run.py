"""Give a run to its first host, where that does not share the run folder with this one.

From then on its files are there. The folder here only says so (`elsewhere.json`), and commands for the run go there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from hpc_launch.base.errors import NotWritten
from hpc_launch.base.files import write_atomic
from hpc_launch.base.json_records import read_record
from hpc_launch.job.shell_text import visible
from hpc_launch.schedulers.job_files import ELSEWHERE

_SHARED = 3
_TIMEOUT_S = 900.0


class Elsewhere(msgspec.Struct, frozen=True):
    """Where a run is."""

    host: str


def hand_over_run(attempt: Path, host: str) -> bool:
    """Copy the run of an attempt to a host, and note where it is; false if the host has the same folder.

    Raises NotWritten.
    """
    words = [sys.executable, "-m", "hpc_launch.agent", "copies", "--whole", str(attempt), "", host]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotWritten(f"cannot copy the run to {host}: {error}") from error
    if done.returncode == _SHARED:
        return False
    if done.returncode != 0:
        said = visible((done.stderr.strip().splitlines() or ["it did not start"])[-1])
        hint = "choose a `run_dir` that you may create on every host"
        raise NotWritten(f"cannot copy the run to {host}: {said}", hint)
    write_atomic(attempt.parents[1] / ELSEWHERE, msgspec.json.encode(Elsewhere(host)).decode())
    return True


def take_back_run(attempt: Path) -> None:
    """The run is here, as its job did not start."""
    with suppress(OSError):
        (attempt.parents[1] / ELSEWHERE).unlink(missing_ok=True)


def host_with(run: Path) -> str | None:
    """The host that has the run; None if it is here."""
    path = run / ELSEWHERE
    found = read_record(path, Elsewhere) if os.path.lexists(path) and path.lstat().st_uid == os.getuid() else None
    return found.host if found is not None else None
