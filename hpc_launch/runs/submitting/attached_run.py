"""Attached runs: over ssh, a run ends when the client that waits for it dies.

    python -m hpc_launch.runs.submitting.attached_run RUN_FOLDER WORD CLIENT

runs on the first host at the other end of the client's ssh. It prints WORD and reads its input: the end of it cancels
the run and names CLIENT, unless the last line was `detach`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hpc_launch.base.installed import module_command

if TYPE_CHECKING:
    from hpc_launch.runs.layout import RunFolder

ATTACH_S = 20.0
"""Seconds to wait for the first host."""
DETACH_S = 5.0
TRIES, PAUSE_S = 5, 2.0
"""How often a host tries to cancel the run, and the time between two tries."""
DETACH = b"detach\n"


@contextmanager
def attached(run: RunFolder, job_id: str) -> Iterator[str]:
    """Tie a run to this process. Yields why that failed, or ''.

    An exception other than Ctrl-C, and the death of this process, cancel the run; the end of the context does not.
    """
    import secrets  # not at the other end, which starts beside the training
    import socket
    import subprocess

    from hpc_launch.schedulers.local import local_jobs
    from hpc_launch.schedulers.ssh.ssh_scheduler import command_there

    entry = local_jobs.lookup(job_id)
    if entry is None or not entry.hosts:
        yield ""
        return
    word = f"attached-{secrets.token_hex(8)}"
    words = [*module_command("hpc_launch.runs.submitting.attached_run"), str(run.path), word, socket.gethostname()]
    command, text = command_there(entry, words)
    text = text.replace(word, f"{word[:12]}''{word[12:]}")  # an echo is no answer
    ssh = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C and Ctrl-Z are for this process only
    )
    _send(ssh.stdin, text.encode("utf-8", "surrogateescape"))
    try:
        yield "" if _comes(ssh.stdout, word.encode()) else f"{entry.hosts[0]} did not answer"
    except KeyboardInterrupt:
        _send(ssh.stdin, DETACH)
        raise
    _send(ssh.stdin, DETACH)
    with suppress(subprocess.TimeoutExpired):  # on a slow network it goes on by itself
        ssh.communicate(timeout=DETACH_S)


def _send(stream: IO[bytes] | None, text: bytes) -> None:
    with suppress(OSError):
        if stream is not None:
            stream.write(text)
            stream.flush()


def _comes(stream: IO[bytes] | None, word: bytes) -> bool:
    """Whether a word comes in time, after whatever the host prints at login."""
    end, kept = time.monotonic() + ATTACH_S, b""
    while stream is not None and word not in kept:
        if not select.select([stream], [], [], max(end - time.monotonic(), 0.0))[0]:
            return False
        data = os.read(stream.fileno(), 1 << 16)
        if not data:
            return False
        kept = (kept + data)[-(1 << 17) :]
    return word in kept


def main(arguments: list[str]) -> int:
    """Wait for the end of the client, and cancel the run. Returns 1 if that failed."""
    folder, word, client = arguments
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # what ends with the client's connection
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
    if sys.stdin.buffer.read().endswith(DETACH):
        return 0
    # Most runs need none of it, and then the host imports it beside the training that starts.
    from hpc_launch.base.errors import UserError
    from hpc_launch.runs.layout import RunFolder
    from hpc_launch.runs.records.attempt_files import Reader
    from hpc_launch.runs.submitting.cancel_run import cancel_run
    from hpc_launch.schedulers.local import local_jobs
    from hpc_launch.schedulers.scheduler import scheduler_for

    run = RunFolder(Path(folder))
    for _ in range(TRIES):
        try:
            last = [Reader().read(attempt) for attempt in run.attempts()[-1:]]
            for one in last:
                local_jobs.adopt(one.job_id or "", one.attempt.path)  # the client may have a state folder of its own
            ended = any(one.end is not None or one.final is not None for one in last)
            cancel_run(run, scheduler_for("ssh"), undecided=ended, by=f"the end of the client on {client}")
        except (UserError, OSError):
            time.sleep(PAUSE_S)
        else:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
