"""Attached runs: over ssh, a run ends when the client that waits for it dies.

    python -m hpc_launch.runs.submitting.attached_run RUN_FOLDER WORD CLIENT

runs on the first host at the other end of the client's ssh. It prints WORD and reads a line every second: the end of
its input, or SILENT_S without a line, cancels the run and names CLIENT. After the line `detach` it ends without that.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hpc_launch.base.errors import UserError
from hpc_launch.base.installed import module_command
from hpc_launch.job.shell_text import quote
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.schedulers.local import local_jobs
from hpc_launch.schedulers.scheduler import scheduler_for
from hpc_launch.schedulers.ssh.ssh_command import SSH
from hpc_launch.schedulers.ssh.ssh_scheduler import exports

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
