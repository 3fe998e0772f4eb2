"""Copies a run to hosts that share no folders with this one, and brings back what they write while it lives.

    copies.py ATTEMPT_FOLDER WORKDIR [--copy-workdir LIMIT] [--exclude PATTERN]... HOST...

Runs on the first host beside the job's script. It prints `ready` when every host has its copy, and again when each has
what changed before a SIGUSR2. On SIGUSR1, when all processes of the job have ended, it fetches the rest and ends.

Files go by rsync, or by tar where rsync is missing, over one ssh connection to each host, which all commands share.
When it is lost, the run goes on, and what the host wrote meanwhile is fetched by the next one.

Self-contained: standard library of Python 3.6 or later.
"""

import argparse
import base64
import contextlib
import os
import pkgutil
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from fnmatch import fnmatchcase
from typing import IO, Iterator, List, Optional, Sequence, Tuple

from hpc_launch.agent.copy_list import TooLargeError, run_files, workdir_files
from hpc_launch.agent.fan_out import AT_ONCE, OPTIONS, ask, last_line, say, shown
from hpc_launch.agent.folders import FIRST_HOST

LOOK_S = 2.0
"""Between two looks at what a host has written. With many hosts it is a tenth of a second for each."""
LAST_S = 30.0
"""To fetch the rest of all hosts."""
SEND_S = 600.0
FETCH_S = 120.0
ASK_S = 60.0
MARKS = ("ending", "stop", "done", "agent/hang.json")
"""Files of the attempt whose appearance every host has to see."""
MAX_MARK = 4096
OUTPUT = "agent/last-output"
"""Its time is when a log of any host grew last: watch_hang.py."""
OLDER_S = 2
"""Added to the age of the last output at each exchange in whole seconds, so that it never becomes newer."""
OWN = (
    *("logs/node-{}.*", "logs/ranks-of-node-{}/**", "agent/node-{}.jsonl"),
    *("agent/stacks/rank-*.txt", "agent/nccl-rank-*"),
)
"""What each host writes, by its number: patterns of rsync."""
VANISHED = 24
"""The exit code of rsync where a file went away meanwhile (rsync(1))."""
Part = Tuple[str, List[str]]
"""A folder, and the files in it that the hosts get."""


class CopyError(Exception):
    """Why files could not be copied."""


class Copy:
    """What all hosts get. `workdir`: what each must have by itself, or ''."""

    def __init__(self, attempt: str, parts: List[Part], workdir: str = "") -> None:
        self.attempt, self.parts, self.workdir = attempt, parts, workdir
        self.token = secrets.token_hex(32)
        os.makedirs(os.path.join(attempt, "agent"), exist_ok=True)
        with open(os.path.join(attempt, FIRST_HOST), "w") as file:
            file.write(self.token)


class HostCopy(threading.Thread):
    """The copy on one host."""

    def __init__(self, copy: Copy, node: int, host: str, sockets: str, every: float = LOOK_S) -> None:
        super().__init__(daemon=True)
        self.copy, self.node, self.host, self.every = copy, node, host, every
        self.turn: "contextlib.AbstractContextManager[object]" = threading.Lock()
        self.ssh = ["ssh", "-T", *OPTIONS, "-oConnectTimeout=20", "-oServerAliveInterval=2", "-oServerAliveCountMax=3"]
        self.ssh += ["-oControlMaster=auto", "-oControlPath=%s/%d" % (sockets, node), "-oControlPersist=10"]
        self.own = [name.format(node) for name in OWN]
        self.ready, self.done, self.wake = threading.Event(), threading.Event(), threading.Event()
        self.changed: Optional[List[Part]] = None
        """What to send again."""
        self.finish = self.shared = self.by_rsync = False
        self.problem = ""

    def run(self) -> None:
        try:
            with self.turn:
                self.begin()
            self.ready.set()
            last = self.shared
            while not last:
                self.wake.wait(self.every)
                self.wake.clear()
                last = self.finish
                if self.changed is not None:
                    self.send(self.changed)
                    self.changed = None
                    self.ready.set()
                self.look(last)
        except (CopyError, OSError, ValueError, subprocess.SubprocessError) as error:
            self.problem = str(error)
        finally:
            self.done.set()

    def begin(self) -> None:
        """Make the folders there and send the copy, unless the host shares the folder of this one."""
        copy = self.copy
        copied = "copied" if len(copy.parts) > 1 else ""
        workdir = copy.parts[1][0] if copied else copy.workdir
        program = (pkgutil.get_data("hpc_launch.agent", "folders.py") or b"").decode()
        words = ["python3", "-I", "-c", program, copy.parts[0][0], copy.attempt, copy.token, workdir, copied]
        said, quiet = self.answer("exec " + " ".join(map(shlex.quote, words)))
        self.shared = said == "shared"
        # What a host prints at login would break rsync.
        self.by_rsync = quiet and said == "ready rsync" and shutil.which("rsync") is not None
        if not self.shared:
            self.send(copy.parts)

    def answer(self, lines: str) -> Tuple[str, bool]:
        """What lines of bash print there, and whether the login printed nothing. Raises CopyError."""
        answer = ask(self.host, [lines], ASK_S, self.ssh)
        if answer.code or not answer.started:
            raise CopyError(last_line(answer.messages) or "ssh ended with code %d" % answer.code)
        return answer.output.decode("utf-8", "replace").strip(), answer.quiet

    def send(self, parts: List[Part]) -> None:
        """Send files. rsync leaves out those that are there with the same content."""
        for folder, paths in parts:
            listed = b"".join(os.fsencode(path) + b"\0" for path in paths)
            if self.by_rsync:
                words = ["-lptc", "--chmod=go-w", "--from0", "--files-from=-", folder + "/"]
                self.rsync([*words, "%s:%s/" % (self.host, folder)], SEND_S, listed)
                continue
            with tempfile.TemporaryFile() as packed:
                tar = ["tar", "-C", folder, "--mode=go-w", "--null", "-T", "-", "-cf", "-"]
                self.command(tar, SEND_S, listed, packed)
                packed.seek(0)
                self.command([*self.ssh, "--", self.host, "exec tar -xpf - -C " + shlex.quote(folder)], SEND_S, packed)

    def look(self, last: bool) -> None:
        """Exchange the marks, and fetch what the host has written."""
        try:
            said, _ = self.answer(mark_lines(self.copy.attempt) + ("rm -f environment\n" if last else ""))
            take_marks(self.copy.attempt, said)
            self.fetch_by_rsync() if self.by_rsync else self.fetch_by_tar(last)
        except (CopyError, OSError, ValueError, subprocess.SubprocessError, tarfile.TarError) as error:
            if not self.problem and not last:
                say("%s: what it writes cannot be fetched now: %s" % (self.host, error))
            self.problem = str(error)
        else:
            self.problem = ""

    def fetch_by_rsync(self) -> None:
        """Append to the files of the host what is new in them."""
        names = ["logs/", "logs/ranks-of-node-%d/" % self.node, "agent/", "agent/stacks/", *self.own]
        only = [*("--include=/" + name for name in names), "--exclude=*"]
        here = self.copy.attempt + "/"
        self.rsync(["-r", "--append", *only, "%s:%s" % (self.host, here), here], FETCH_S)

    def fetch_by_tar(self, everything: bool) -> None:
        """Replace the files of the host that have changed since the last time, or all."""
        mark = secrets.token_hex(16)
        script = (
            "cd %s || exit; echo %s; touch agent/.next; [ -e agent/.sent ] || touch -d @0 agent/.sent\n"
            "find %s -type f %s -print0 2>/dev/null | tar --null -T - -cf -; mv agent/.next agent/.sent\n"
        ) % (
            shlex.quote(self.copy.attempt),
            mark,
            " ".join(self.own).replace("**", "*"),
            "" if everything else "-newer agent/.sent",
        )
        with tempfile.TemporaryFile() as packed:
            self.command([*self.ssh, "--", self.host, "bash -s"], FETCH_S, script.encode(), packed)
            packed.seek(0)
            while packed.readline() not in (("%s\n" % mark).encode(), b""):
                pass
            with tarfile.open(fileobj=packed, mode="r:") as tar:
                for member in tar:
                    data = tar.extractfile(member) if member.isfile() else None
                    own = any(fnmatchcase(member.name, name) for name in self.own) and "/.." not in member.name
                    if data is not None and own:
                        path = os.path.join(self.copy.attempt, member.name)
                        os.makedirs(os.path.dirname(path), exist_ok=True)
                        with open(path, "wb") as file:
                            shutil.copyfileobj(data, file)

    def rsync(self, words: Sequence[str], seconds: float, listed: bytes = b"") -> None:
        """Run rsync. Raises CopyError."""
        self.command(["rsync", "-s", "--timeout=60", "-e", " ".join(self.ssh), *words], seconds, listed)

    @staticmethod
    def command(
        words: Sequence[str], seconds: float, given: "bytes | IO[bytes]", output: Optional[IO[bytes]] = None
    ) -> None:
        """Run a command in a session of its own, which no signal to the job reaches. Raises CopyError."""
        with tempfile.TemporaryFile() as file:
            if isinstance(given, bytes):
                file.write(given)
                file.seek(0)
            done = subprocess.run(
                words,
                stdin=file if isinstance(given, bytes) else given,
                stdout=output or subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=seconds,
                start_new_session=True,
                check=False,
            )
        if done.returncode not in (0, VANISHED):
            raise CopyError(last_line(done.stderr) or "%s ended with code %d" % (words[0], done.returncode))

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            nothing = subprocess.DEVNULL
            words = [*self.ssh, "-O", "exit", "--", self.host]
            subprocess.run(words, stdin=nothing, stdout=nothing, stderr=nothing, timeout=5, check=False)


def mark_lines(attempt: str) -> str:
    """Bash that makes the marks of this host on another one, and prints those of that one."""
    lines = ["cd %s || exit" % shlex.quote(attempt), "now=$(date +%s)"]
    for name in MARKS:
        with contextlib.suppress(OSError), open(os.path.join(attempt, name), "rb") as file:
            text = shlex.quote(file.read(MAX_MARK).decode("utf-8", "replace"))
            lines.append("(set -C; printf %%s %s >%s) 2>/dev/null" % (text, name))
    lines += ["last() { stat -c %%Y %s 2>/dev/null || echo 0; }" % OUTPUT]
    with contextlib.suppress(OSError):
        age = time.time() - os.stat(os.path.join(attempt, OUTPUT)).st_mtime
        lines.append("at=$((now - %d)); [ $at -le $(last) ] || touch -d @$at %s" % (age + OLDER_S, OUTPUT))
    lines += [
        "for name in %s; do [ ! -f $name ] || echo mark $name $(head -c %d $name | base64 -w 0); done"
        % (" ".join(MARKS), MAX_MARK),
        "[ ! -f %s ] || echo output $((now - $(last) + %d))" % (OUTPUT, OLDER_S),
    ]
    return "\n".join(lines) + "\n"


def take_marks(attempt: str, said: str) -> None:
    """Make the marks that another host printed."""
    for kind, name, *data in (line.split() for line in said.splitlines() if " " in line):
        if kind == "mark" and name in MARKS:
            with contextlib.suppress(FileExistsError), open(os.path.join(attempt, name), "xb") as file:
                file.write(base64.b64decode("".join(data[:1])))
        elif kind == "output" and name.isdigit():
            path, at = os.path.join(attempt, OUTPUT), time.time() - int(name)
            if not os.path.exists(path) or os.stat(path).st_mtime < at:
                with open(path, "a"):
                    os.utime(path, (at, at))


class Copies:
    """The copies on all hosts."""

    def __init__(self, copy: Copy, hosts: List[str], sockets: str) -> None:
        every, turn = max(LOOK_S, len(hosts) / 10), threading.Semaphore(AT_ONCE)
        self.copy = copy
        self.hosts = [HostCopy(copy, node, host, sockets, every) for node, host in enumerate(hosts)]
        for one in self.hosts:
            one.turn = turn
        self.parent = os.getppid()
        self.over = self.changed = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the hosts' last lines are still to come
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, _: object) -> None:
        if number == signal.SIGUSR1:
            self.over = True
        else:
            self.changed = True

    def alone(self) -> bool:
        """Whether the job's script is gone."""
        return os.getppid() != self.parent

    def run(self) -> int:
        """Until the job has ended. Returns the exit code."""
        for one in self.hosts:
            one.start()
        if not self.all_ready():
            return 1
        while not self.over and not self.alone():
            time.sleep(0.1)
            if self.changed:
                self.changed = False
                if not self.send_again():
                    return 1
        for one in self.hosts:
            one.finish = True
            one.wake.set()
        end = time.monotonic() + LAST_S
        for one in self.hosts:
            if not one.done.wait(max(end - time.monotonic(), 0.0)) or one.problem:
                why = one.problem or "no answer"
                say("%s: the end of its logs is only there, in %s: %s" % (one.host, self.copy.attempt, why))
        return 0

    def all_ready(self) -> bool:
        """Wait until each host has its copy, and say so."""
        for one in self.hosts:
            while not (one.ready.wait(0.2) or one.done.is_set() or self.alone()):
                pass
        failed = [one for one in self.hosts if not one.ready.is_set()]
        for one in failed:
            say("%s did not get its copy of the run: %s" % (one.host, shown(one.problem.encode())))
        if not failed:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
        return not failed

    def send_again(self) -> bool:
        """Let each host have what has changed in the run folder."""
        run = self.copy.parts[0][0]
        for one in self.hosts:
            if not one.shared:
                one.ready.clear()
                one.changed = [(run, run_files(run, self.copy.attempt))]
                one.wake.set()
        return self.all_ready()


@contextlib.contextmanager
def socket_folder() -> Iterator[str]:
    """A private folder for the connections that commands share. A longer path than in /tmp may not fit."""
    folder = tempfile.mkdtemp(prefix="hpc-launch-", dir="/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def give_run(attempt: str, host: str) -> bool:
    """Copy the whole run of an attempt to a host, unless that has the same folder: then it returns False.

    Raises CopyError, OSError and subprocess.SubprocessError.
    """
    run = os.path.dirname(os.path.dirname(attempt))
    copy = Copy(attempt, [(run, run_files(run, attempt, whole=True))])
    with socket_folder() as sockets:
        one = HostCopy(copy, 0, host, sockets)
        try:
            one.begin()
        finally:
            one.close()
    return not one.shared


def main(words: List[str]) -> int:
    """Copy, and bring back."""
    os.umask(0o022)
    parser = argparse.ArgumentParser()
    parser.add_argument("attempt")
    parser.add_argument("workdir")
    parser.add_argument("--copy-workdir", type=int, metavar="BYTES")
    parser.add_argument("--exclude", action="append", default=[])
    parser.add_argument("hosts", nargs="+")
    args = parser.parse_args(words)
    run = os.path.dirname(os.path.dirname(args.attempt))
    with socket_folder() as sockets:
        try:
            parts = [(run, run_files(run, args.attempt))]
            if args.copy_workdir is not None:
                parts.append((args.workdir, workdir_files(args.workdir, args.exclude, args.copy_workdir, run)))
            copies = Copies(Copy(args.attempt, parts, args.workdir), args.hosts, sockets)
        except (OSError, TooLargeError) as error:
            say("cannot copy the run to the hosts: %s" % error)
            return 1
        code = copies.run()
        for one in copies.hosts:
            one.close()
    sys.stdout.flush()
    os._exit(code)  # without waiting for threads that are still connecting
