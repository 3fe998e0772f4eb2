"""Submit a job script and follow jobs through Submitit; the only module that imports it.

Undocumented parts of Submitit in use, pinned by contract tests (tests/schedulers/test_submitit_contract.py): the hooks
of `PicklingExecutor` that an executor must implement (docs/plugins.md of Submitit), and the `watcher` of a job class.
Do not use `Job.result()` and related methods: they read a pickle that a plain script never writes.

Classify a failed sbatch as a refusal or an unknown outcome, by its output and exit code.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from pathlib import Path

from hpc_launch.base.errors import (
    NoContact,
    NotHere,
    NotNow,
    NotWritten,
    SchedulerError,
    SubmitRefused,
    SubmitUnknown,
    Unreachable,
)
from hpc_launch.base.files import state_folder
from hpc_launch.base.run_program import run_program
from hpc_launch.schedulers.scheduler import JobRecord, Submission
from hpc_launch.schedulers.slurm.run_command import NOT_HERE, selected_cluster, submission_environment
from hpc_launch.schedulers.slurm.shared_query import FLOOR_S, shared_answer
from hpc_launch.schedulers.slurm.slurm_reasons import refusal
from hpc_launch.schedulers.slurm.slurm_scheduler import query_jobs

# By default, importing Submitit adds a stdout handler to its logger.
os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")

import submitit
from submitit.slurm.slurm import SlurmInfoWatcher

_NO_ANSWER = re.compile(
    r"timed out|unable to contact|zero bytes were transmitted|standby|communication (connection|shutdown) failure"
    r"|(message|socket) (send|receive)|(send|receive) (failure|error)|connection (refused|reset)"
    r"|not connected|no route to host|network is (unreachable|down)|broken pipe|unexpected message|header lengths"
    r"|insane message|zero length message|message length|entire message|interrupted system call"
    r"|resource temporarily unavailable|temporarily unable|missing socket|protocol authentication error",
    re.IGNORECASE,
)
"""Communication errors of Slurm (src/common/slurm_errno.c) and the network: the request may have arrived."""

_REFUSAL = re.compile(
    r"batch job submission failed|allocation failure|^sbatch: (error|fatal)|(unrecognized|invalid) option"
    r"|submission is (not allowed|not permitted|disabled)"
)


def classify(code: int, output: str, errors: str) -> SchedulerError:
    """The error for a submission that returned no job id.

    Only an explicit refusal is a SubmitRefused: anything else may have submitted a job. `code`: exit code of `timeout
    sbatch …`: 124 or above 128 if a signal ended it, negative if one ended timeout itself, 126 or 127 if sbatch could
    not be run.
    """
    lines = [line.strip() for line in f"{output}\n{errors}".splitlines() if line.strip()]
    message = "\n".join(dict.fromkeys(_without_prefix(line) for line in lines))
    if code in {126, 127}:
        return NotHere(f"cannot run sbatch: {message or 'command not found'}", NOT_HERE)
    if code < 0 or code == 124 or 128 < code <= 128 + 64:
        return SubmitUnknown(f"sbatch was killed before it answered\n{message}".strip())
    if any(_NO_ANSWER.search(line) for line in lines):
        return NoContact(f"Slurm did not confirm the submission: {_without_prefix(lines[-1])}")
    if code != 0 and any(_REFUSAL.search(line) for line in lines):
        return _refused(message)
    return SubmitUnknown(f"sbatch exited with code {code} without a job id: {message or 'no output'}")


def _without_prefix(line: str) -> str:
    """A line of output without sbatch's prefixes."""
    line = re.sub(r"^sbatch: (error: |fatal: )?", "", line)
    return re.sub(r"^Batch job submission failed: ", "", line)


def _refused(message: str) -> SubmitRefused:
    """The error for a refusal. It keeps everything: warnings and the site's own messages help, too."""
    found = refusal(message)
    if found is None:
        return SubmitRefused(f"Slurm rejected the job: {message}")
    if found.action == NOT_HERE:
        why = found.meaning[0].lower() + found.meaning[1:-1]
        return NotHere(f"{why}, so nothing was submitted: {message}", NOT_HERE)
    if found.never:
        return SubmitRefused(f"Slurm rejected the job: {message}", found.action)
    return NotNow(f"Slurm does not take the job at present: {message}", f"{found.meaning} {found.action}")


SUBMIT_TIMEOUT_S = 200
"""sbatch retries for about two minutes while the controller is busy (src/sbatch/sbatch.c)."""
KILL_AFTER_S = 10

_SUBMITIT_TAGS = re.compile(r"%[jtAa]")
"""Placeholders that Submitit replaces in a folder's path (JobPaths)."""


class Watcher(SlurmInfoWatcher):
    """Asks squeue and sacct, through the shared answer, in place of Submitit's own call of sacct."""

    def refresh(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        """Query these jobs; returns the known ones by id. Raises Unreachable."""
        return shared_answer().about(job_ids, query_jobs, fresh=fresh)

    def update(self) -> None:
        found = self.refresh(self._registered)
        self._info_dict = {job_id: {"State": record.state} for job_id, record in found.items()}


class ScriptJob(submitit.SlurmJob[None]):
    """A job that runs a plain script. `ScriptJob(folder, job_id)` reattaches to it from any process."""

    watcher = Watcher(delay_s=int(FLOOR_S))


class ScriptExecutor(submitit.SlurmExecutor):
    """Submits one job script. Submitit's copy of it is FOLDER/submitit/JOBID_submission.sh."""

    job_class = ScriptJob

    def __init__(self, submission: Submission, folder: Path) -> None:
        super().__init__(folder)
        self._submission = submission
        self.asked = False
        """Whether sbatch was started; before that, nothing can have been submitted."""

    def submit_script(self) -> ScriptJob:
        """Submit the script. Raises a SchedulerError, NoJobIdError, and OSError if a file cannot be written."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._submit_command("")

    def _submit_command(self, command: str) -> ScriptJob:  # noqa: ARG002 - Submitit's signature
        """As Submitit's, which runs sbatch in the environment of this process: other threads use that meanwhile."""
        script = self.folder / f".submission_file_{uuid.uuid4().hex}.sh"
        try:
            words = self._make_submission_command(script)
            done = run_program(words, None, environment=submission_environment(self._submission.environment))
            if done.returncode != 0:
                raise classify(done.returncode, done.stdout, done.stderr)
            job = ScriptJob(self.folder, self._get_job_id_from_submission_command(done.stdout))
            script.replace(job.paths.submission_file)
        finally:
            script.unlink(missing_ok=True)
        return job

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        command = _command(self._submission, submission_file_path)
        self.asked = True
        return command

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        """The id from `123` or `123;cluster`. A site's wrapper may print other lines around it."""
        text = string.decode(errors="replace") if isinstance(string, bytes) else string
        for pattern in (r"(\d+)(?:;\S*)?", r"Submitted batch job (\d+)(?: .*)?"):
            for line in reversed(text.splitlines()):
                if match := re.fullmatch(pattern, line.strip(), re.ASCII):
                    return match[1]
        raise NoJobIdError(text)

    def _num_tasks(self) -> int:
        return 1


class NoJobIdError(Exception):
    """sbatch succeeded without printing a job id; the message is its output."""


def submit(submission: Submission) -> ScriptJob:
    """Submit a script through Submitit. Raises SubmitRefused, or SubmitUnknown if a job may have been created."""
    if tag := _SUBMITIT_TAGS.search(str(submission.folder)):
        raise SubmitRefused(
            f"the folder {submission.folder} contains {tag[0]}, which Submitit would replace",
            "set run_dir: to a folder without it",
        )
    try:
        executor = ScriptExecutor(submission, submission.folder / "submitit")
    except RuntimeError as error:  # Submitit finds no srun
        raise NotHere(str(error), NOT_HERE) from error
    try:
        # slurmd would create it by the umask, and a line of a teammate could pass for one of Slurm's.
        if not submission.array:
            os.close(os.open(submission.batch_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
        return executor.submit_script()
    except NoJobIdError as error:
        raise SubmitUnknown(f"sbatch printed no job id: {str(error).strip() or 'no output'}") from error
    except (OSError, UnicodeError) as error:
        if executor.asked:
            raise SubmitUnknown(f"the job may have been submitted: {error}") from error
        raise NotWritten(f"cannot write the script for sbatch: {error}") from error


def trial(submission: Submission, folder: Path) -> str:
    """The output of `sbatch --test-only` for a script, which is written to `folder`.

    Raises SubmitRefused if Slurm would reject the job, Unreachable if it does not answer.
    """
    try:
        command = _command(submission, folder / "script.sh", "--test-only")
        done = run_program(command, None, environment=submission_environment(submission.environment))
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"cannot run sbatch --test-only: {error}") from error
    if done.returncode != 0:
        refused = classify(done.returncode, done.stdout, done.stderr)
        raise Unreachable(str(refused), refused.hint) if isinstance(refused, SubmitUnknown) else refused
    return "\n".join(line.removeprefix("sbatch: ").strip() for line in f"{done.stdout}{done.stderr}".splitlines())


def _command(submission: Submission, script: Path, *extra: str) -> list[str]:
    """Write the script; the command that submits it. Raises OSError, UnicodeError."""
    # Submitit writes in the locale's encoding; the script is always UTF-8.
    script.write_bytes(submission.script.encode("utf-8", "surrogateescape"))
    cluster = selected_cluster()
    where = [f"--clusters={cluster}"] if cluster is not None else []
    array, folder = submission.array, str(submission.folder).replace("%", "%%")
    log = f"{folder}/{'%a.log' if array else submission.batch_log.name}"  # sbatch expands %j etc.
    return [
        *("timeout", f"--kill-after={KILL_AFTER_S}", str(SUBMIT_TIMEOUT_S)),
        *("sbatch", "--parsable", f"--job-name={submission.job_name}"),
        *(f"--output={log}", "--open-mode=append", *([f"--array={array}"] if array else [])),
        *(*where, *submission.options, *extra, str(script), str(submission.folder)),
    ]


def follow(job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
    """Query all these jobs at once; returns the known ones by id. Raises Unreachable."""
    # The folder only locates Submitit's own files, which a script does not have.
    jobs = [ScriptJob(state_folder(), job_id) for job_id in job_ids]
    return ScriptJob.watcher.refresh([job.job_id for job in jobs], fresh=fresh)
