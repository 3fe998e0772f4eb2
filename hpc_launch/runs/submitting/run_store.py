"""Write a run to disk. A run folder that cannot be written completely is removed again."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from hpc_launch import __version__
from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import make_folder, refuse_replaceable, write_atomic
from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.base.installed import ARCHIVE, HOOKS, PHASES, agent_archive
from hpc_launch.base.json_records import read_record, write_record
from hpc_launch.job.shell_text import quote
from hpc_launch.plan.recorded_parts import CodePlan
from hpc_launch.runs.layout import FOLDER_MODE, GROUP_MODE, RUN_MODE, AttemptFolder, RunFolder
from hpc_launch.runs.records.plan_record import PlanRecord
from hpc_launch.runs.records.run_info import CodeInfo, RunInfo, by_this_process
from hpc_launch.runs.records.submission import Overrides
from hpc_launch.runs.submitting.code_snapshot import take_snapshot


@dataclass(frozen=True)
class PreparedAttempt:
    """A job that passed all checks, ready to be written to disk and submitted."""

    name: str
    """The job's own name: `[A-Za-z0-9][A-Za-z0-9._-]*`, at most 64 characters."""
    site: str
    scheduler: str
    """`slurm`, `ssh` or `local`."""
    runs_folder: Path
    """Parent of the run folders: shared storage on a cluster."""
    job_yaml: str
    resolved_yaml: str
    site_yaml: str
    script: str
    plan: PlanRecord
    options: tuple[str, ...] = ()
    """sbatch options of this attempt only, such as `--exclude=n3`."""
    overrides: Overrides = field(default_factory=Overrides)
    """How this attempt differs from the job file."""
    modules: Mapping[str, Path] = field(default_factory=dict)
    """Further Python modules that the training imports: the name of the file, and its source."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


def create_run(prepared: PreparedAttempt, sweep: Struct | None = None, *, at: RunFolder | None = None) -> RunFolder:
    """Create the run folder, without any attempts, or the folder of a sweep with this record.

    Only run.json, which completes the run, is synced. `at`: where the run of a stage of a pipeline is; only one process
    creates it, all at once.
    Raises Refused and leaves nothing on disk.
    """
    created = time.time()
    with refusing(prepared.runs_folder):
        make_folder(prepared.runs_folder)
        refuse_replaceable(prepared.runs_folder)
        if at is None:
            run = new_folder(prepared, created)
        else:  # it is written beside its place
            run = RunFolder(at.path.with_name(f".{at.path.name}.{secrets.token_hex(4)}"))
            run.path.mkdir(mode=FOLDER_MODE)
        try:
            write_atomic(run.job_yaml, prepared.job_yaml, sync=False)
            write_atomic(run.resolved_yaml, prepared.resolved_yaml, sync=False)
            write_atomic(run.site_yaml, prepared.site_yaml, sync=False)
            run.journal.mkdir(mode=FOLDER_MODE)
            run.hooks.mkdir(mode=FOLDER_MODE)
            write_programs(run)
            phases = {PHASES.name: PHASES} if prepared.plan.phases else {}
            for name, source in {HOOKS.name: HOOKS, **phases, **prepared.modules}.items():
                write_atomic(run.hooks / name, source.read_text(encoding="utf-8"), sync=False)
            # A file, so that the thousands of processes of a job write no bytecode there, with whatever umask.
            write_atomic(run.hooks / "__pycache__", "", sync=False)
            if sweep is None:
                run.attempts_folder.mkdir(mode=FOLDER_MODE)
            else:
                run.arrays.mkdir(mode=FOLDER_MODE)
                write_record(run.sweep_info, sweep)
            if at is not None:
                write_atomic(run.stage_info, "{}\n")
                write_after(run)
            if at is None or not _shares_code(at.pipeline, run, prepared.plan.code):
                take_snapshot(run, prepared.plan.code)
            # Last: a folder with a run.json is a complete run.
            write_info(run, prepared, created, name=(at or run).name)
            if at is None:
                return run
            try:
                os.rename(run.path, at.path)
            except OSError:  # rename(2) replaces no folder that has files: another process may have put its own there
                if not at.exists:
                    raise
                shutil.rmtree(run.path, ignore_errors=True)
            return at
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise


def write_info(run: RunFolder, prepared: PreparedAttempt, created: float, *, name: str | None = None) -> None:
    """Write run.json, which completes the run. `name`: where the folder will get another one. Raises OSError."""
    info = RunInfo(
        run=name or run.name,
        name=prepared.name,
        site=prepared.site,
        scheduler=prepared.scheduler,
        cluster=prepared.plan.cluster,
        created=created,
        version=__version__,
        **by_this_process(),
    )
    write_record(run.info, info)


def claim_number(run: RunFolder, number: int) -> AttemptFolder:
    """Create the folder of attempt `number`. Raises UsageError where another process has created it, and Refused."""
    attempt = run.attempt(number)
    with refusing(run.path):
        try:
            attempt.path.mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            raise UsageError(
                f"attempt {number} of {run.name} has just been claimed by another process; nothing was submitted",
                hint=f"hpc-launch status {run.name} shows its state",
            ) from None
        run.note_attempt()
    return attempt


def write_programs(run: RunFolder) -> None:
    """Write what scripts of this release run, unless the run has it. Raises OSError."""
    from hpc_launch.script.parts import RUNTIME, runtime

    path = run.hooks / RUNTIME
    if not os.path.exists(path) or path.read_text("utf-8") != runtime():
        write_atomic(run.hooks / ARCHIVE, agent_archive(), sync=False)
        write_atomic(path, runtime(), sync=False)


def write_attempt(attempt: AttemptFolder, prepared: PreparedAttempt) -> None:
    """Write script and plan into a claimed attempt; the intent, which is synced, follows. Raises OSError."""
    write_record(attempt.plan, prepared.plan, sync=False)
    # Executable: the local scheduler starts it, and a user may.
    write_atomic(attempt.script, prepared.script, mode=0o755, sync=False)


def write_after(run: RunFolder) -> None:
    """Write the command that runs a driver at the end of a job, with this interpreter. Raises OSError.

    It unsets Python's variables and leaves the working folder: both may belong to the training's Python.
    """
    path = os.environ.get("PYTHONPATH")
    lines = [
        "#!/bin/bash",
        "# Called with an attempt's folder when its job ends: submits the next attempt if one is due.",
        # timeout(1) resets ignored signals, and a preemption signals the job again while Python starts.
        "[[ ${2:-} = @(--outside|--successor=*) ]] || trap '' TERM",
        "cd / && unset PYTHONHOME PYTHONSTARTUP PYTHONPATH",
        *([f"export PYTHONPATH={quote(path)}"] if path else []),
        f'exec {quote(sys.executable)} -m hpc_launch.hook "$@"',
    ]
    write_atomic(run.after, "\n".join(lines) + "\n", mode=0o755, sync=False)


def discard(run: RunFolder, attempt: AttemptFolder) -> None:
    """Remove an attempt of this process for which nothing was submitted, and the run if it has no other attempt."""
    shutil.rmtree(attempt.path, ignore_errors=True)
    discard_run(run)


def discard_run(run: RunFolder) -> None:
    """Remove a run without attempts; a run with any stays."""
    with suppress(OSError):
        # Fails if there is an attempt, and prevents a new one once it has succeeded.
        run.attempts_folder.rmdir()
        shutil.rmtree(run.path, ignore_errors=True)


@contextmanager
def refusing(folder: Path) -> Iterator[None]:
    """Turn an OSError into the finding that the run folder cannot be written."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else str(folder)
        raise cannot_write(folder, error.strerror or str(error), where, error.errno) from error


def cannot_write(folder: Path, why: str, where: str | None = None, number: int | None = None) -> Refused:
    """The error for a run folder that cannot be written. `number`: the errno."""
    first = "free some space, correct the permissions, or "
    if number == errno.EPERM and where:  # refuse_replaceable
        own = os.path.isdir(where) and os.stat(where).st_uid == os.getuid()
        first = f"run `chmod o-w {quote(where)}`, or " if own else ""
    hint = f"{first}choose another folder with run_dir: or $HPC_LAUNCH_HOME"
    hint += f" (failed at {where})" if where else ""
    return Refused([Finding(FindingCode.CANNOT_WRITE, f"cannot write the run folder {folder}: {why}", hint=hint)])


def _open_to(folder: Path, group: str) -> None:
    try:
        shutil.chown(folder, group=group)
    except LookupError:
        raise OSError(errno.EINVAL, f"no group {group} ($HPC_LAUNCH_RUN_GROUP)", str(folder)) from None
    folder.chmod(GROUP_MODE)


def _shares_code(pipeline: RunFolder | None, run: RunFolder, code: CodePlan | None) -> bool:
    """Use the snapshot that the pipeline took when it was submitted, if it is of the same folder. Raises OSError."""
    info = read_record(pipeline.code_info, CodeInfo) if pipeline is not None else None
    if pipeline is None or code is None or info is None or info.root != code.root:
        return False
    shutil.copy2(pipeline.code_info, run.code_info)
    if os.path.isdir(pipeline.code):
        os.symlink(f"../{pipeline.code.name}", run.code)
    return True


def new_folder(prepared: PreparedAttempt, created: float) -> RunFolder:
    """A new folder in the folder of runs, for this user or the group of $HPC_LAUNCH_RUN_GROUP. Raises OSError."""
    stamp = time.strftime("%y%m%d-%H%M%S", time.localtime(created))
    while True:
        run = RunFolder(prepared.runs_folder.absolute() / f"{prepared.name}-{stamp}-{secrets.token_hex(2)}")
        with suppress(FileExistsError):
            run.path.mkdir(mode=RUN_MODE)
            if group := os.environ.get("HPC_LAUNCH_RUN_GROUP"):
                _open_to(run.path, group)
            with suppress(OSError):  # there is none, or no such thing here
                # A default ACL would replace the umask for everything that bash, srun and the agents create here.
                os.removexattr(run.path, "system.posix_acl_default")
            return run


KILL_AFTER = "HPC_LAUNCH_TEST_KILL_AFTER"
STOP_AFTER = "HPC_LAUNCH_TEST_STOP_AFTER"

_done = Counter[str]()


def checkpoint(step: str) -> None:
    """Mark `step` as done. The process sends itself SIGKILL or SIGSTOP if the variable names this step.

    `STEP#2` names it when it is done for the second time.
    """
    _done[step] += 1
    names = (step, f"{step}#{_done[step]}")
    if os.environ.get(KILL_AFTER) in names:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get(STOP_AFTER) in names:
        os.kill(os.getpid(), signal.SIGSTOP)
