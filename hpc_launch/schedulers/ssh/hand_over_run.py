"""Give a run to its first host, where that does not share the run folder with this one.

From then on its files are there. The folder here only says so (`elsewhere.json`), and commands for the run go there.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec

from hpc_launch.base.errors import NotWritten
from hpc_launch.base.files import write_atomic
from hpc_launch.base.json_records import read_record
from hpc_launch.job.shell_text import visible
from hpc_launch.schedulers.job_files import ELSEWHERE


class Elsewhere(msgspec.Struct, frozen=True):
    """Where a run is."""

    host: str


def hand_over_run(attempt: Path, host: str) -> bool:
    """Copy the run of an attempt to a host, and note where it is; false if the host has the same folder.

    Raises NotWritten.
    """
    from hpc_launch.agent.copies import CopyError, give_run

    try:
        if not give_run(str(attempt), host):
            return False
    except (CopyError, OSError, subprocess.SubprocessError) as error:
        hint = "choose a `run_dir` that you may create on every host"
        raise NotWritten(f"cannot copy the run to {host}: {visible(str(error))}", hint) from error
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
