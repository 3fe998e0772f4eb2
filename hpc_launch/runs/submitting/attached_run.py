"""Attached runs: over ssh, a run ends when the client that waits for it dies.

    python -m hpc_launch.runs.submitting.attached_run RUN_FOLDER WORD CLIENT

runs on the first host at the other end of the client's ssh. It prints WORD and reads a line every second: the end of
its input, or SILENT_S without a line, cancels the run and names CLIENT. After the line `detach` it ends without that.

Cancel a run on a user's request, whatever its state.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from msgspec import structs

from hpc_launch.base.errors import SchedulerError, Unreachable, UserError
from hpc_launch.base.installed import module_command
from hpc_launch.base.json_records import write_record
from hpc_launch.base.user_dirs import user
from hpc_launch.job.shell_text import quote
from hpc_launch.runs.layout import FOLDER_MODE, RunFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.journal import Journal
from hpc_launch.runs.records.run_info import refuse_other_users_run
from hpc_launch.runs.records.submission import CANCELLED, abandon, request_cancel
from hpc_launch.runs.records.verdict_record import read_verdict
from hpc_launch.runs.status.attempt_view import AttemptView
from hpc_launch.runs.submitting.reconcile import real_jobs, still_has_id
from hpc_launch.runs.submitting.successor_job import cancel_successor
from hpc_launch.schedulers.local import local_jobs
from hpc_launch.schedulers.scheduler import Cancelling, scheduler_for
from hpc_launch.schedulers.ssh.ssh_command import SSH
from hpc_launch.schedulers.ssh.ssh_scheduler import exports


def cancel_run(run: RunFolder, scheduler: Cancelling, *, undecided: bool = False, by: str = "") -> list[str]:
    """Cancel all jobs of a run that may be alive, and return their ids. `by` is who asks; default: this user.

    An attempt that no job has claimed yet is abandoned first, so that it never trains, even if the scheduler does not
    answer now. The same goes for the attempt that a verdict asks for, and with `undecided` for one that a verdict may
    still ask for. Cancelling a run that is over is not an error.

    Raises:
        UsageError: The run belongs to another user.
        Unreachable: A job that may be running could not be cancelled. The request stays on record, and the next driver
            carries it out (`carry_out`).
    """
    refuse_other_users_run(run)
    journal = Journal(run)
    by = by or user()
    cancelled: list[str] = []
    unreached: Unreachable | None = None
    for attempt in run.attempts():
        files = Reader().read(attempt)
        if files.void is not None or files.final is not None:
            continue
        journal.note("cancel asked", attempt=attempt.number, job_id=files.job_id, by=by)
        with suppress(OSError):
            if files.cancel is None and files.end is None:
                request_cancel(attempt.cancel, by)
            abandon(attempt, f"{CANCELLED} by {by}")
        try:
            cancelled.extend(_cancel(Reader().read(attempt), scheduler))
        except Unreachable as error:
            unreached = error
    _block_next_attempt(run, by, undecided=undecided)
    cancelled.extend(cancel_successor(run, scheduler))
    if unreached is not None:
        raise unreached
    return sorted(set(cancelled))


def carry_out(run: RunFolder, views: Iterable[AttemptView], scheduler: Cancelling) -> list[str]:
    """Cancel the jobs whose cancellation is due (`AttemptView.cancel_due`). Returns their ids.

    Raises Unreachable.
    """
    cancelled = []
    for view in views:
        if view.cancel_due:
            cancelled.extend(_cancel(view.files, scheduler))
            Journal(run).note("cancel sent", attempt=view.files.attempt.number, job_id=view.job_id)
    return cancelled


def _block_next_attempt(run: RunFolder, by: str, *, undecided: bool) -> None:
    """Claim the number of the attempt that a verdict asks for, so that no driver submits it."""
    last = next(reversed(run.attempts()), None)
    verdict = read_verdict(last) if last is not None else None
    if last is None or not (verdict.again if verdict is not None else undecided):
        return
    following = run.attempt(last.number + 1)
    with suppress(OSError):
        following.path.mkdir(mode=FOLDER_MODE, exist_ok=True)
        abandon(following, f"{CANCELLED} by {by}")


def _cancel(files: AttemptFiles, scheduler: Cancelling) -> list[str]:
    """Cancel the attempt's job, or all jobs of its name where no id is known."""
    try:
        jobs = _by_id(files.job_id, files, scheduler) if files.job_id else _by_name(files, scheduler)
        for job_id in jobs:
            scheduler.cancel(job_id)
        if jobs and files.cancel is not None:
            with suppress(OSError):
                write_record(files.attempt.cancel, structs.replace(files.cancel, sent=time.time()))
    except SchedulerError as error:
        if files.void is not None:
            # The job would exit at once.
            return []
        recorded = (
            f"the request is on record: the next `hpc-launch watch {files.attempt.run.name}`, `status` or `list` "
            "cancels the job once the scheduler answers, and no other attempt follows"
        )
        hint = recorded if files.cancel is not None else "try again when the scheduler answers"
        raise Unreachable(f"job {files.job_id} could not be cancelled: {error}", hint=hint) from error
    return jobs


def _by_id(job_id: str, files: AttemptFiles, scheduler: Cancelling) -> list[str]:
    name = files.intent.job_name if files.intent else None
    return [job_id] if name is None or still_has_id(job_id, name, scheduler) else []


def _by_name(files: AttemptFiles, scheduler: Cancelling) -> list[str]:
    name = files.intent.job_name if files.intent else None
    jobs = [job.job_id for job in real_jobs(scheduler.find(name)) if not job.ended_for_good] if name else []
    return list(dict.fromkeys(files.intent.job_of(job_id) for job_id in jobs)) if files.intent else []


SILENT_S = 10.0
ATTACH_S = 20.0
"""Seconds to wait for the first host."""
DETACH_S = 5.0
TRIES, PAUSE_S = 5, 2.0
"""How often a host tries to cancel the run, and the time between two tries."""
MAX_BEFORE = 64 << 20
"""Bytes that a host may print at login."""
DETACH = b"detach\n"
_BEAT = """\
import os, select, sys
left = int(sys.argv[1])  # the first bytes belong together
while True:
    data = b"\\n"
    if left or select.select([0], [], [], 1)[0]:
        data = os.read(0, 65536)
        left -= min(left, len(data))
    if not data:
        break
    while data:
        data = data[os.write(1, data):]
"""
"""Between this process and ssh, in a session of its own: it ends with this process, but goes on after Ctrl-Z."""


@contextmanager
def attached(run: RunFolder, job_id: str) -> Iterator[str]:
    """Tie a run to this process. Yields why that failed, or ''.

    An exception other than Ctrl-C, and the death of this process, cancel the run; the end of the context does not.
    """
    entry = local_jobs.lookup(job_id)
    if entry is None or not entry.hosts:
        yield ""
        return
    word = f"attached-{secrets.token_hex(8)}"
    words = [*module_command("hpc_launch.runs.submitting.attached_run"), str(run.path), word, socket.gethostname()]
    line = f"exec {' '.join(map(quote, words))}".replace(word, f"{word[:12]}''{word[12:]}")  # an echo is no answer
    text = "\n".join([*exports(), line, ""]).encode("utf-8", "surrogateescape")
    beat = _start([sys.executable, "-I", "-S", "-c", _BEAT, str(len(text))], subprocess.PIPE)
    ssh = _start([*SSH, "-oControlMaster=no", "--", entry.hosts[0], "bash -s"], beat.stdout)
    _close(beat.stdout)
    _send(beat.stdin, text)
    try:
        yield "" if _wait_for(ssh.stdout, word.encode()) else f"{entry.hosts[0]} did not answer"
    except KeyboardInterrupt:
        _send(beat.stdin, DETACH)
        raise
    _send(beat.stdin, DETACH)
    _close(beat.stdin)
    with suppress(subprocess.TimeoutExpired):  # on a slow network it goes on by itself
        ssh.wait(DETACH_S)


def _start(words: list[str], stdin: int | IO[bytes] | None) -> subprocess.Popen[bytes]:
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(words, stdin=stdin, stdout=pipe, stderr=nothing, start_new_session=True)


def _send(stream: IO[bytes] | None, text: bytes) -> None:
    with suppress(OSError):
        if stream is not None:
            stream.write(text)
            stream.flush()


def _close(stream: IO[bytes] | None) -> None:
    with suppress(OSError):
        if stream is not None:
            stream.close()


def _wait_for(stream: IO[bytes] | None, word: bytes) -> bool:
    """Whether a word comes in time."""
    end, read, kept = time.monotonic() + ATTACH_S, 0, b""
    while stream is not None and word not in kept and read < MAX_BEFORE:
        if not select.select([stream], [], [], max(end - time.monotonic(), 0.0))[0]:
            return False
        data = os.read(stream.fileno(), 1 << 16)
        if not data:
            return False
        read, kept = read + len(data), (kept + data)[-(1 << 17) :]
    return word in kept


def main(arguments: list[str]) -> int:
    """Wait for the end of the client, and cancel the run. Returns 1 if that failed."""
    folder, word, client = arguments
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # what ends with the client's connection
        signal.signal(number, signal.SIG_IGN)
    run = RunFolder(Path(folder))
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
    how = _until_the_end()
    for _ in range(TRIES if how else 0):
        try:
            last = [Reader().read(attempt) for attempt in run.attempts()[-1:]]
            for one in last:
                local_jobs.adopt(one.job_id or "", one.attempt.path)  # the client may have a state folder of its own
            ended = any(one.end is not None or one.final is not None for one in last)
            cancel_run(run, scheduler_for("ssh"), undecided=ended, by=f"the {how} of the client on {client}")
        except (UserError, OSError):
            time.sleep(PAUSE_S)
        else:
            return 0
    return 1 if how else 0


def _until_the_end() -> str:
    """How the client ended; '' if it detached."""
    heard, end_of_last = time.monotonic(), b""
    while time.monotonic() - heard < SILENT_S:
        if not select.select([0], [], [], 0.5)[0]:
            continue
        try:
            data = os.read(0, 1 << 16)
        except OSError:
            return "end"
        if not data:
            return "end"
        if DETACH in end_of_last + data:
            return ""
        heard, end_of_last = time.monotonic(), data[-len(DETACH) :]
    return "silence"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
