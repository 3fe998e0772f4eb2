"""Putting a run on disk and reading it back. A run folder that could not be written is taken away again."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_launch import __version__
from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import create_once, read_json, write_atomic, write_json
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.run.layout import AttemptFolder, RunFolder
from hpc_launch.run.records import values
from hpc_launch.run.records.attempt_files import VOID, Claim, read_claim
from hpc_launch.run.records.process_identity import Process, process_of, this_process
from hpc_launch.run.status.run_status import Prepared
from hpc_launch.run.submitting.code_snapshot import take_snapshot
from hpc_launch.spec.shell_text import quote

HOOKS = Path(__file__).parents[2] / "agent" / "hpc_launch_hooks.py"
WATCHER = HOOKS.with_name("hpc_launch_watch.py")
"""The training's own helper: a copy lies in each run folder, so that nothing need be installed where the job runs."""


@dataclass(frozen=True)
class RunInfo:
    """What run.json says. `created` is in seconds since the epoch; `creator` is None where it is not known."""

    run: str
    name: str
    site: str
    scheduler: str
    created: float
    creator: Process | None = None


def create_run(prepared: Prepared, *, now: float | None = None) -> RunFolder:
    """Make the folder of a new run with everything but its attempts. Raises Refused, leaving nothing behind."""
    created = time.time() if now is None else now
    with refusing(prepared.runs_folder):
        prepared.runs_folder.mkdir(parents=True, exist_ok=True)
        run = _new_folder(prepared, created)
        try:
            write_atomic(run.job_yaml, prepared.job_yaml)
            write_atomic(run.resolved_yaml, prepared.resolved_yaml)
            write_atomic(run.site_yaml, prepared.site_yaml)
            run.journal.mkdir()
            run.hooks.mkdir()
            for beside in (HOOKS, WATCHER):
                write_atomic(run.hooks / beside.name, beside.read_text(encoding="utf-8"))
            run.attempt(1).path.parent.mkdir()
            take_snapshot(run, prepared.plan)
            # Last: a folder with a run.json is a whole run.
            write_json(run.info, _info(run, prepared, created))
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
    return run


def read_info(run: RunFolder) -> RunInfo | None:
    """What run.json says; None where there is none yet, or where it cannot be read."""
    data = read_json(run.info)
    if data is None:
        return None
    return RunInfo(
        run=run.name,
        name=values.text(data.get("name")) or run.name,
        site=values.text(data.get("site")) or "",
        scheduler=values.text(data.get("scheduler")) or "",
        created=values.seconds(data.get("created")) or 0.0,
        creator=process_of(data),
    )


def claim_number(run: RunFolder, number: int) -> AttemptFolder:
    """Make the folder of attempt `number`. Raises UsageError where somebody else has made it, and Refused."""
    attempt = run.attempt(number)
    with refusing(run.path):
        try:
            attempt.path.mkdir()
        except FileExistsError:
            raise UsageError(
                f"attempt {number} of {run.name} has just been claimed by somebody else; nothing was submitted",
                hint=f"hpc-launch status {run.name} says how it goes",
            ) from None
    return attempt


def write_attempt(attempt: AttemptFolder, prepared: Prepared) -> None:
    """Put script and plan into a claimed attempt. Raises OSError."""
    attempt.logs.mkdir(exist_ok=True)
    write_json(attempt.plan, dict(prepared.plan))
    # Executable: the local scheduler starts it, and a person may.
    write_atomic(attempt.script, prepared.script, mode=0o777)


def write_after(run: RunFolder) -> None:
    """The command by which a job calls the driver when it ends: this interpreter, by its path. Raises OSError.

    The job's own environment may hold another Python's settings, and its folder modules of any name.
    """
    path = os.environ.get("PYTHONPATH")
    lines = [
        "#!/bin/bash",
        "# Called with an attempt's folder when its job ends: is another attempt to follow?",
        "cd / && unset PYTHONHOME PYTHONSTARTUP PYTHONPATH",
        *([f"export PYTHONPATH={quote(path)}"] if path else []),
        f'exec {quote(sys.executable)} -m hpc_launch.hook "$@"',
    ]
    write_atomic(run.after, "\n".join(lines) + "\n", mode=0o777)


def give_up(attempt: AttemptFolder, reason: str) -> Claim:
    """Make sure that no job will ever train for this attempt, unless one claimed it already.

    Returns whose the attempt is now: nobody's (`void` set), or a job's (`job_id` set). Neither is set while another
    process is just writing its claim. Raises OSError.
    """
    line = " ".join(reason.split())
    if create_once(attempt.claim, f"{VOID} {line}\n"):
        return Claim(void=line)
    return read_claim(attempt) or Claim()


def discard(run: RunFolder, attempt: AttemptFolder) -> None:
    """Take away an attempt of ours for which nothing was submitted, and the run where it has no other attempt."""
    shutil.rmtree(attempt.path, ignore_errors=True)
    discard_run(run)


def discard_run(run: RunFolder) -> None:
    """Take away a run without attempts; one that has any stays."""
    with suppress(OSError):
        # Fails where an attempt is there, and keeps one from being made once it went through.
        run.attempt(1).path.parent.rmdir()
        shutil.rmtree(run.path, ignore_errors=True)


@contextmanager
def refusing(folder: Path) -> Iterator[None]:
    """Turn an OSError into the finding that the run folder cannot be written, for the user to mend."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else str(folder)
        raise cannot_write(folder, error.strerror or str(error), where) from error


def cannot_write(folder: Path, why: str, where: str | None = None) -> Refused:
    """The error for a run folder that cannot be written."""
    hint = "free some space, or name another folder with run_dir: or $HPC_LAUNCH_HOME"
    hint += f" (failed at {where})" if where else ""
    return Refused([Finding(FindingCode.CANNOT_WRITE, f"cannot write the run folder {folder}: {why}", hint=hint)])


def _new_folder(prepared: Prepared, created: float) -> RunFolder:
    stamp = time.strftime("%y%m%d-%H%M%S", time.localtime(created))
    while True:
        run = RunFolder(prepared.runs_folder.absolute() / f"{prepared.name}-{stamp}-{secrets.token_hex(2)}")
        with suppress(FileExistsError):
            run.path.mkdir()
            return run


def _info(run: RunFolder, prepared: Prepared, created: float) -> dict[str, object]:
    return {
        "run": run.name,
        "name": prepared.name,
        "site": prepared.site,
        "scheduler": prepared.scheduler,
        "created": created,
        "version": __version__,
        **this_process().as_json(),
    }
