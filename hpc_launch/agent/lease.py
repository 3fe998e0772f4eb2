"""The lease of a run on one host: a file that says who uses it, and whose age says whether that is still true.

    lease.py RUN     print who else uses this host, one line each
    lease.py --json  print all who use it, as JSON

Each job has a file of its own in the host's memory, because nobody can remove or replace the file of another user
there. Jobs take turns to write it, so that of two that begin together one sees the other. A file that is not renewed
expires.

Self-contained: standard library of Python 3.6 or later.
"""

import contextlib
import json
import os
import pwd
import socket
import stat
import sys
import threading
import time
from typing import Iterator, List, NamedTuple, Optional

FOLDER = "/dev/shm"  # noqa: S108 - others can only make a host look used, as they can by using it
PREFIX = "hpc-launch.lease."
RENEW_S = 5.0
EXPIRES_S = 30.0
"""Age of a file that nobody renews any more."""
AHEAD_S = 5.0
"""By so much the time of a file may be ahead of the clock."""
SETTLE_S = 0.3
"""Within this time a turn comes, or the lease of a job that begins at the same time appears."""
MAX_BYTES = 4096
MOST = 100
"""Holders that are listed."""


class Holder(NamedTuple):
    """Who uses the host. `user` is the owner of the file, the rest is what they wrote into it."""

    path: str
    user: str
    uid: int
    run: str
    job_id: str
    since: float

    def __str__(self) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since))
        who = os.uname().nodename, self.user, self.run, self.job_id, clock
        return "%s is in use by %s: run %s, job %s, since %s" % who


def holders() -> Iterator[Holder]:
    """All who use this host, the first one first."""
    here = "%s%s." % (PREFIX, os.uname().nodename)
    found = [read(os.path.join(FOLDER, name)) for name in os.listdir(FOLDER) if name.startswith(here)]
    return iter(sorted((one for one in found if one is not None), key=lambda one: (one.since, one.path)))


def read(path: str) -> Optional[Holder]:
    """The lease in a file; None if it has expired or is not one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not -AHEAD_S < time.time() - status.st_mtime < EXPIRES_S:
                return None
            values = json.loads(os.read(descriptor, MAX_BYTES).decode("utf-8", "replace"))
        finally:
            os.close(descriptor)
        since = float(values["since"])
        words = [shown(values["run"]), shown(values["job_id"])]
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    since = since if 0 < since < status.st_mtime else status.st_mtime
    return Holder(path, name_of(status.st_uid), status.st_uid, words[0], words[1], since)


def shown(value: object) -> str:
    """A text of another user, as printable ASCII."""
    return "".join(character if " " <= character <= "~" else "?" for character in str(value)[:100])


def name_of(uid: int) -> str:
    """The name of a user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@contextlib.contextmanager
def turn() -> Iterator[bool]:
    """Let no other job write its lease meanwhile, by an abstract socket (unix(7)); False if none becomes free."""
    with socket.socket(socket.AF_UNIX) as place:
        end, own = time.monotonic() + SETTLE_S, False
        while not own and time.monotonic() < end:
            with contextlib.suppress(OSError):
                place.bind("\0%s%s" % (PREFIX, os.uname().nodename))
                own = True
            time.sleep(0 if own else 0.01)
        yield own


class Lease:
    """The lease of this job on this host."""

    def __init__(self, run: str, job_id: str) -> None:
        self.run, self.over, self.lock = run, False, threading.Lock()
        name = "%s%s.%d.%s" % (PREFIX, os.uname().nodename, os.getuid(), job_id)
        self.path = os.path.join(FOLDER, "%s.%s" % (name, os.urandom(8).hex()))  # which nobody knows in advance
        with turn() as self.had_turn:
            self.text = json.dumps({"run": run, "job_id": job_id, "since": time.time()})
            self.write()
        threading.Thread(target=self.renew, daemon=True).start()

    def write(self) -> None:
        """Create the file, which is complete when it appears."""
        temporary = os.path.join(os.path.dirname(self.path), ".%s" % os.path.basename(self.path))
        file = open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w")
        try:
            with file:
                os.chmod(file.fileno(), 0o644)
                file.write(self.text)
            os.rename(temporary, self.path)
        except OSError:
            os.unlink(temporary)
            raise

    def taken_by(self) -> Optional[Holder]:
        """Another job that began before, or at all without a turn; the previous attempt of the run is waited for."""
        time.sleep(0 if self.had_turn else SETTLE_S)
        end = time.monotonic() + EXPIRES_S
        while True:
            first = next((one for one in holders() if self.had_turn or one.path != self.path), None)
            if first is None or first.path == self.path:
                return None
            if first.uid != os.getuid() or first.run != self.run or time.monotonic() > end:
                return first
            time.sleep(0.5)

    def renew(self) -> None:
        """Until the process ends."""
        while not self.over:
            with self.lock, contextlib.suppress(OSError):
                if os.path.exists(self.path):
                    os.utime(self.path)
                elif not self.over:  # logind removes the files of a user who logs out (RemoveIPC=, logind.conf(5))
                    self.write()
            time.sleep(RENEW_S)

    def release(self) -> None:
        """Let others use the host."""
        with self.lock:
            self.over = True
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def main(words: List[str]) -> int:
    """Print who uses this host, except for this run."""
    first = list(holders())[:MOST]
    if words == ["--json"]:
        found = [{"user": one.user, "run": one.run, "job_id": one.job_id, "since": one.since} for one in first]
        print(json.dumps(found))
        return 0
    for one in first:
        if one.uid != os.getuid() or one.run != words[0]:
            print(one)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
