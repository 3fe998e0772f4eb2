"""Runs bash on hosts by ssh: a question with an answer, or the script of a node on each host of a job.

    fan_out.py ATTEMPT_FOLDER [--spares] HOST...

starts the hosts of a job, and holds the connections until all have ended. At most AT_ONCE hosts are logging in at the
same time. Every second each connection gets a line: without it, a host ends its part of the job (on_host.py). When a
connection is lost, or on SIGTERM, the others are ended. The exit code is that of the host that failed first. With
--spares, the others stay: the job does without the host.

Uses the user's own ssh with its configuration. Commands go through the standard input to a bash, so that no shell of
another kind has to read them; what a host prints at login, before a random mark, is dropped. Output goes to files,
which no master connection in the background can hold open; time and output are bounded.
"""

import contextlib
import os
import random
import select
import shlex
import signal
import stat
import subprocess
import tempfile
import time
from typing import List, Optional, Sequence

from hpc_launch.agent import program, say

OPTIONS = (
    "-oBatchMode=yes -oLogLevel=ERROR -oClearAllForwardings=yes -oForwardAgent=no -oForwardX11=no "
    "-oPermitLocalCommand=no"
).split()
"""For each ssh of hpc-launch."""
SSH = [
    *("ssh", "-T", *OPTIONS, "-oConnectTimeout=20", "-oServerAliveInterval=2", "-oServerAliveCountMax=3"),
    "-oControlPath=none",  # the user's shared connection ends with its last session, with the options of its first
]
PLACE = "/tmp"  # noqa: S108 - in a folder of one's own; the path of a socket is short
MAKE = "-oControlMaster=auto", "-oControlPersist=30"  # s between the check of the hosts and what is started there


def one_login(job: str, make: bool = False) -> List[str]:
    """Options by which all connections of a job to a host share the login of the first one, if it has `make`."""
    folder = "%s/hpc-launch-ssh-%d" % (PLACE, os.getuid())
    with contextlib.suppress(OSError):
        os.mkdir(folder, 0o700)
    state = os.lstat(folder if os.path.lexists(folder) else "/")
    own = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077
    if not own or not job.replace("-", "").isalnum():
        return []
    return ["-oControlPath=%s/%s-%%C" % (folder, job), *(MAKE if make else ())]


def ssh_of(job: str, make: bool = False) -> List[str]:
    """The words of ssh with these options: it takes the first of an option."""
    return [SSH[0], *one_login(job, make), *SSH[1:]]


SSH_FAILED = 255
"""The exit code of ssh itself (ssh(1))."""
AT_ONCE = 32
LOOK_S, REST_S = 0.1, 0.5
"""Between two looks at the hosts: while they log in or end, and else."""
BEAT_S = 1.0
"""How often each held connection gets a line."""
START_S = 120.0
"""Seconds for a host to get from the login to the command."""
END_S = 8.5
"""Seconds for the hosts to end their processes: less than the supervisor's 10 s between SIGTERM and SIGKILL."""
LEFT_S = 10.0
"""Seconds to end what a host whose connection was lost may have left."""
OVER = b"\nover\n"
"""Printed last by a host whose command ended by itself and noted its exit code."""
MAX_LOGIN = 64 << 20
"""Bytes that a host may print at login."""
MAX_ANSWER = 4 << 20
MAX_MESSAGES = 64 << 10


class Connection:
    """One ssh that runs a line of bash on a host: `held`, until its input ends.

    Attributes:
        started: Whether the host has got as far as the line.
        quiet: Whether it had printed nothing by then.
        output: What it printed: after the mark once it has started, before that the end of the login.
        messages: The end of the standard error.
        too_long: Whether it printed more than is allowed.
        code: The exit code of ssh, after its end.
    """

    def __init__(self, node: int, host: str, line: str, ssh: Sequence[str] = SSH, held: bool = True) -> None:
        self.node, self.host, self.begin = node, host, time.monotonic()
        self.output = self.messages = b""
        self.code = 0
        self.started = self.too_long = False
        self.quiet = True
        self._taken = self._begin = 0
        """Bytes that were read, and those of them before the output."""
        mark = "hpc-launch-%032x" % random.SystemRandom().getrandbits(128)
        self._mark = ("%s\n" % mark).encode()
        # Two words by `printf` itself: a shell that echoes its input must not look like an answer.
        text = "printf '%%s%%s\\n' %s %s; %s\n" % (mark[:20], mark[20:], line)
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        with tempfile.TemporaryFile() as given:
            given.write(text.encode("utf-8", "surrogateescape"))
            given.seek(0)
            # A session of its own: signals to the job's processes must not reach ssh before its host has ended.
            self.process = subprocess.Popen(
                [*ssh, "--", host, "bash -s"],
                stdin=subprocess.PIPE if held else given,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,
            )
        if self.process.stdin is not None:
            self.write(text.encode("utf-8", "surrogateescape"))
            os.set_blocking(self.process.stdin.fileno(), False)

    def write(self, text: bytes) -> None:
        """Send text, unless ssh has ended or takes nothing now."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None and not self.process.stdin.closed:
                os.write(self.process.stdin.fileno(), text)

    def close(self) -> None:
        """End the input: the host ends its part of the job."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def look(self) -> bool:
        """Read what the host has printed. Returns whether ssh has ended."""
        if self._out.closed:
            return True
        code = self.process.poll()
        size = os.fstat(self._out.fileno()).st_size
        while self._taken < size and not self.too_long:
            data = os.pread(self._out.fileno(), 1 << 20, self._taken)
            self._taken += len(data)
            self.output = (self.output + data)[-MAX_ANSWER:]
            if not self.started:
                before, mark, rest = self.output.partition(self._mark)
                self.quiet = self.quiet and not before
                if mark:
                    self.started, self.output, self._begin = True, rest, self._taken - len(rest)
            self.too_long = self._taken - self._begin > (MAX_ANSWER if self.started else MAX_LOGIN)
        if code is None:
            return False
        self.code, size = code, os.fstat(self._err.fileno()).st_size
        self.messages = os.pread(self._err.fileno(), MAX_MESSAGES, max(size - MAX_MESSAGES, 0))
        if self.too_long:
            size = os.fstat(self._out.fileno()).st_size
            self.output += os.pread(self._out.fileno(), len(OVER), max(size - len(OVER), 0))
        for stream in filter(None, (self._out, self._err, self.process.stdin)):
            stream.close()
        return True

    def end(self, seconds: float) -> bool:
        """Wait for ssh to end; kill it after so many seconds, which returns False, and when it prints too much."""
        began = time.monotonic()
        try:
            while not self.look() and not self.too_long:
                if time.monotonic() > began + seconds:
                    return False
                time.sleep(min(LOOK_S / 4, 0.002 + (time.monotonic() - began) / 32))  # the sooner, the more it matters
            return True
        finally:
            self.process.kill()
            self.process.wait()
            self.look()

    def reason(self) -> str:
        """The last line that ssh or the host wrote, without control characters."""
        line = "it prints too much" if self.too_long and not self.started else last_line(self.messages)
        return ": " + line if line else ""


def ask(host: str, lines: Sequence[str], timeout_s: float, ssh: Sequence[str] = SSH) -> Connection:
    """Run lines of bash on a host. Raises OSError and subprocess.TimeoutExpired."""
    one = Connection(0, host, "\n".join(lines), ssh, held=False)
    if not one.end(timeout_s):
        raise subprocess.TimeoutExpired([*ssh, host], timeout_s)
    return one


def last_line(text: bytes) -> str:
    """The last line that is not empty, without control characters."""
    lines = [line for line in map(shown, text.splitlines()) if line]
    return lines[-1][:300] if lines else ""


def shown(text: bytes) -> str:
    """Text of a host, without control characters."""
    return "".join(one if one.isprintable() else "?" for one in text.decode("utf-8", "replace").strip())


class FanOut:
    """All connections of an attempt."""

    ssh: Sequence[str] = tuple(SSH)

    def __init__(self, folder: str, hosts: List[str], spares: bool = False) -> None:
        self.folder, self.spares = folder, spares
        self.ssh = [self.ssh[0], *one_login(os.environ.get("HPC_LAUNCH_JOB_ID", "")), *self.ssh[1:]]
        self.waiting = list(enumerate(hosts))
        self.running: List[Connection] = []
        self.cleaning: List[Connection] = []
        self.end_at: Optional[float] = None
        self.code = 0
        self.stopped = False
        self.wakes, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:
            self.code = self.code or 128 + number
            self.stopped = True

    def end(self) -> None:
        """Let all hosts end their part of the job."""
        if self.end_at is None:
            self.end_at = time.monotonic() + END_S
        self.waiting = []
        for connection in self.running:
            connection.close()

    def run(self) -> int:
        """Until all have ended. Returns the exit code."""
        beat = 0.0
        while self.running or self.waiting:
            if self.stopped and self.end_at is None:
                self.end()
            while self.waiting and sum(not one.started for one in self.running) < AT_ONCE:
                node, host = self.waiting.pop(0)
                self.running.append(Connection(node, host, self.line(node), self.ssh))
            busy = self.end_at is not None or any(not one.started for one in self.running)
            if select.select([self.wakes], [], [], LOOK_S if busy else REST_S)[0]:
                os.read(self.wakes, 1 << 10)  # a signal, such as that of a connection that has ended
            now = time.monotonic()
            for connection in list(self.running):
                if now - beat >= BEAT_S:
                    connection.write(b"\n")
                ended = connection.look()
                self.on_output(connection)
                late = not connection.started and (connection.too_long or now - connection.begin > START_S)
                if ended:
                    self.running.remove(connection)
                    self.on_end(connection)
                elif late or (self.end_at is not None and now > self.end_at):
                    connection.process.kill()
            beat = now if now - beat >= BEAT_S else beat
        end_at = time.monotonic() + LEFT_S
        for connection in self.cleaning:
            connection.end(end_at - time.monotonic())
        return self.code

    def line(self, node: int) -> str:
        """What a host runs."""
        script = os.path.join(self.folder, "node.sh")
        hint = "; set `shared_folders: false` below `scheduler:` in the site profile"
        return where_shared(script, ["bash", script, "begin", str(node)], hint)

    def on_output(self, connection: Connection) -> None:
        """Use what a host has printed."""

    def on_end(self, connection: Connection) -> None:
        """Note the end of a connection: one that was lost ends the job."""
        code = connection.code
        code = 128 - code if code < 0 else code
        by_itself = connection.started and (code == 0 or connection.output.endswith(OVER))
        if self.end_at is not None or by_itself:
            self.code = self.code or code
            return
        self.end_what_is_left(connection)
        code = code or 1
        what = "the connection" if code == SSH_FAILED else "its part of the job"
        why = connection.reason() or ("" if connection.started else ": its login shell ended before the job began")
        if not connection.started and time.monotonic() - connection.begin > START_S:
            why = ": it did not begin within %d s" % START_S
        text = "%s: %s ended with code %d%s" % (connection.host, what, code, why)
        if self.spares:
            say("the job goes on without the spare " + text)
            return
        self.code = code
        say(text)
        path = os.path.join(self.folder, "logs", "node-%d.exit" % connection.node)
        with contextlib.suppress(OSError), open(path, "x") as file:  # unless it is noted
            file.write("%d\n" % code)
        self.end()

    def end_what_is_left(self, connection: Connection) -> None:
        """End the processes of a host whose connection was lost: its end may have been that of the agent there."""
        words = ["python3", *program("job_processes"), "end", self.folder, str(connection.node)]
        ssh = ["ssh", "-oConnectTimeout=3", *SSH[1:]]  # ssh takes the first of an option
        line = "exec " + " ".join(map(shlex.quote, words))
        self.cleaning.append(Connection(connection.node, connection.host, line, ssh, held=False))


def where_shared(script: str, words: List[str], hint: str = "") -> str:
    """A line of bash that becomes a command, if the host has a script in the run folder."""
    missing = "the run folder is not shared with this host: %s%s" % (os.path.dirname(script), hint)
    test = "[ -r %s ] || { echo %s >&2; exit 1; }; " % (shlex.quote(script), shlex.quote(missing))
    return test + "exec " + " ".join(map(shlex.quote, words))


def main(words: List[str]) -> int:
    """Run it."""
    spares = words[1] == "--spares"
    return FanOut(words[0], words[2 if spares else 1 :], spares).run()
