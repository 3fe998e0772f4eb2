"""Check a job file for submission: one job, a sweep or a pipeline. Nothing is submitted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from hpc_launch.base.errors import Refused
from hpc_launch.base.files import make_own_folder, user, write_atomic
from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.job.job_file import JobSource, has_jobs, has_sweep, refuse_made_up
from hpc_launch.prepare.prepare import PreparedJob, prepare_job
from hpc_launch.service.listener import QUIET, Listener

if TYPE_CHECKING:
    from hpc_launch.prepare.prepare_pipeline import PreparedPipeline
    from hpc_launch.prepare.prepare_sweep import PreparedSweep


class CheckedFile(Struct, frozen=True):
    """A job file that passed every check, with the options that it was checked with."""

    first: PreparedJob
    """The job, or that of the first point or stage."""
    sets: tuple[str, ...]
    sweep: PreparedSweep | None = None
    stages: PreparedPipeline | None = None
    avoided: tuple[str, ...] = ()
    """Hosts that node health excludes, where no scheduler chooses them."""

    @property
    def jobs(self) -> list[tuple[PreparedJob, int]]:
        """The jobs that a submission leads to, each with the number of its points."""
        if self.stages is not None:
            return [(job, self.stages.points.get(name, 1)) for name, job in self.stages.jobs.items()]
        return [(self.first, len(self.sweep.points) if self.sweep is not None else 1)]


def check_file(job: JobSource, *, site: str | None, sets: Sequence[str], listener: Listener = QUIET) -> CheckedFile:
    """Check a job for submission, whatever it describes. Raises Refused with all errors, UsageError."""
    if isinstance(job, Path) and has_jobs(job):
        from hpc_launch.prepare.prepare_pipeline import prepare_pipeline

        pipeline = prepare_pipeline(job, site=site, sets=sets)
        announce(pipeline.first, listener, pipeline.warnings)
        return CheckedFile(pipeline.first, tuple(sets), stages=pipeline)
    refuse_made_up(job, "submit")
    if has_sweep(job, sets):
        from hpc_launch.prepare.prepare_sweep import prepare_sweep

        sweep = prepare_sweep(job, site=site, sets=sets)
        announce(sweep.first, listener, sweep.warnings)
        return CheckedFile(sweep.first, tuple(sets), sweep=sweep)
    prepared = prepare_job(job, site=site, sets=sets)
    avoided: tuple[str, ...] = ()
    while prepared.plan.hosts:
        from hpc_launch.prepare.attempts import unhealthy_hosts

        more = unhealthy_hosts(prepared.plan, avoided)
        if not more:
            break
        listener.say(f"not using {', '.join(more)}: `hpc-launch nodes list` shows why")
        avoided += more
        prepared = prepare_job(job, site=site, sets=sets, avoid=avoided)
    announce(prepared, listener, prepared.warnings)
    return CheckedFile(prepared, tuple(sets), avoided=avoided)


def announce(prepared: PreparedJob, listener: Listener, warnings: Sequence[Finding]) -> None:
    """Name the site, if it was detected rather than named, and the warnings."""
    if prepared.loaded.detected is not None:
        listener.say(f"site {prepared.plan.site}: {prepared.loaded.detected}")
    listener.warn(warnings)


def write_dry_run(prepared: PreparedJob) -> Path:
    """Write the script, byte-identical to a submission's, to the runs folder, where it can be started by hand."""
    # A group may share the folder of runs. Another user may have taken the name.
    folder = Path(prepared.plan.runs_folder) / f"dry-run-{user()}"
    if os.path.lexists(folder) and folder.lstat().st_uid != os.getuid():
        folder = folder.with_name(f"{folder.name}-{os.urandom(4).hex()}")
    path = folder / f"{prepared.plan.name}.sh"
    try:
        make_own_folder(folder)
        write_atomic(path, prepared.script, mode=0o755)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error}"
        raise Refused([Finding(FindingCode.CANNOT_WRITE, message, hint="set run_dir: to a writable folder")]) from error
    return path
