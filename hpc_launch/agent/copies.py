"""Copies a run to hosts that share no folders with this one, and brings back what they write while it lives.

    copies.py ATTEMPT_FOLDER WORKDIR [--copy-workdir LIMIT] [--exclude PATTERN]... HOST...

Runs on the first host beside the job's script. It prints `ready` when every host has its copy, and again when each has
what changed before a SIGUSR2. On SIGUSR1, when all processes of the job have ended, it fetches the rest and ends.

Files go by rsync, or by tar where rsync is missing, over one ssh connection to each host, which all commands share.
The next one fetches what the host wrote without it.
"""

import argparse
import contextlib
import glob
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
from concurrent.futures import ThreadPoolExecutor, wait
from fnmatch import fnmatchcase
from typing import IO, Callable, List, Optional, Sequence, Set, Tuple

from hpc_launch.agent import say
from hpc_launch.agent.fan_out import AT_ONCE, ask, last_line, shown, ssh_of
from hpc_launch.agent.folders import FIRST_HOST, TooLargeError, run_files, workdir_files

LOOK_S = 2.0
"""Between two looks at what a host has written. With many hosts it is a tenth of a second for each."""
SEND_S, FETCH_S, ASK_S, LAST_S = 600.0, 120.0, 60.0, 30.0
"""Time limits; the last one is for the rest of all hosts."""
MARKS = ("ending", "stop", "done", "agent/hang.json")
"""Files of the attempt whose appearance every host has to see; the first one of a name stays."""
MAX_MARK = 4096
OUTPUT = "agent/last-output"
"""Its time is when a log of any host grew last: watch_hang.py."""
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


class HostCopy:
    """The copy on one host, used by one thread at a time."""

    def __init__(self, copy: Copy, node: int, host: str, job: str) -> None:
        self.copy, self.node, self.host = copy, node, host
        self.ssh = ssh_of(job + "-copies", make=True)  # the job goes on without this connection
        self.lock = threading.Lock()
        self.own = [name.format(node) for name in OWN]
        self.marked: Set[str] = set()
        """The marks that the host has from here."""
        self.shared = self.by_rsync = False
        self.problem = ""

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

    def send_again(self) -> None:
        """Send what has changed in the run folder."""
        run = self.copy.parts[0][0]
        if not self.shared:
            with self.lock:
                self.send([(run, run_files(run, self.copy.attempt))])

    def answer(self, lines: str) -> Tuple[str, bool]:
        """What lines of bash print there, and whether the login printed nothing. Raises CopyError."""
        answer = ask(self.host, [lines], ASK_S, self.ssh)
        if answer.code or not answer.started:
            raise CopyError(last_line(answer.messages) or "ssh ended with code %d" % answer.code)
        return answer.output.decode("utf-8", "replace").strip(), answer.quiet

    def send(self, parts: List[Part], keep: bool = False) -> None:
        """Send files. rsync leaves out those that are there with the same content; `keep`: both, those of a name."""
        for folder, paths in parts:
            listed = b"".join(os.fsencode(path) + b"\0" for path in paths)
            if self.by_rsync:
                words = ["-lptc", "--chmod=go-w", "--from0", "--files-from=-", *(["--ignore-existing"] if keep else [])]
                self.rsync([*words, folder + "/", "%s:%s/" % (self.host, folder)], SEND_S, listed)
                continue
            unpack = "exec tar -xpf - %s-C %s" % ("--skip-old-files " if keep else "", shlex.quote(folder))
            tar = ["tar", "-C", folder, "--mode=go-w", "--null", "-T", "-", "-cf", "-"]
            both = (" ".join(map(shlex.quote, words)) for words in (tar, [*self.ssh, "--", self.host, unpack]))
            self.command(["bash", "-o", "pipefail", "-c", " | ".join(both)], SEND_S, listed)

    def look(self, last: bool) -> None:
        """Exchange the marks and the time of the last output, and fetch what the host has written."""
        if self.shared:
            return
        try:
            with self.lock:
                self.exchange(last)
        except (CopyError, OSError, ValueError, subprocess.SubprocessError, tarfile.TarError) as error:
            if not self.problem and not last:
                say("%s: what it writes cannot be fetched now: %s" % (self.host, error))
            self.problem = str(error)
        else:
            self.problem = ""

    def exchange(self, last: bool) -> None:
        """Do it. Raises CopyError and others."""
        attempt = self.copy.attempt
        marks = [name for name in MARKS if os.path.exists(os.path.join(attempt, name))]
        if not self.marked.issuperset(marks):
            self.send([(attempt, marks)], keep=True)
            self.marked.update(marks)
        enter = "cd %s || exit\n" % shlex.quote(attempt)
        tell = output_lines(attempt) + ("rm -f environment\n" if last else "")
        said, _ = self.answer("%s%sls %s 2>/dev/null; true" % (enter, tell, " ".join(MARKS)))
        for name in set(said.split()).intersection(MARKS).difference(marks):
            text, _ = self.answer("%sexec head -c %d %s" % (enter, MAX_MARK, name))
            with contextlib.suppress(FileExistsError), open(os.path.join(attempt, name), "x") as file:
                file.write(text)
        logs = os.path.join(glob.escape(attempt), "logs", "node-%d.*log" % self.node)
        before = sum(map(os.path.getsize, glob.glob(logs)))
        self.fetch_by_rsync() if self.by_rsync else self.fetch_by_tar(last)
        if sum(map(os.path.getsize, glob.glob(logs))) > before:
            with open(os.path.join(attempt, OUTPUT), "a") as log:
                os.utime(log.fileno())

    def fetch_by_rsync(self) -> None:
        """Append to the files of the host what is new in them."""
        names = "logs/", "logs/ranks-of-node-%d/" % self.node, "agent/", "agent/stacks/", *self.own
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
                    own = any(fnmatchcase(member.name, name) for name in self.own) and "/.." not in member.name
                    data = tar.extractfile(member) if own and member.isfile() else None
                    if data is not None:
                        path = os.path.join(self.copy.attempt, member.name)
                        os.makedirs(os.path.dirname(path), exist_ok=True)
                        with open(path, "wb") as file:
                            shutil.copyfileobj(data, file)

    def rsync(self, words: Sequence[str], seconds: float, listed: bytes = b"") -> None:
        """Run rsync. Raises CopyError."""
        self.command(["rsync", "-s", "--timeout=60", "-e", " ".join(self.ssh), *words], seconds, listed)

    @staticmethod
    def command(words: Sequence[str], seconds: float, given: bytes, output: Optional[IO[bytes]] = None) -> None:
        """Run a command in a session of its own, which no signal to the job reaches. Raises CopyError."""
        with tempfile.TemporaryFile() as file:
            file.write(given)
            file.seek(0)
            done = subprocess.run(
                words,
                stdin=file,
                stdout=output or subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=seconds,
                start_new_session=True,
                check=False,
            )
        if done.returncode not in (0, VANISHED):
            raise CopyError(last_line(done.stderr) or "%s ended with code %d" % (words[0], done.returncode))


def output_lines(attempt: str) -> str:
    """Bash that lets another host know when a log grew last, by its age: clocks differ."""
    try:
        age = time.time() - os.stat(os.path.join(attempt, OUTPUT)).st_mtime
    except OSError:
        return ""
    at = "at=$(($(date +%%s) - %d)); " % (age + 1)
    return at + "[ $at -le $(stat -c %%Y %s 2>/dev/null || echo 0) ] || touch -d @$at %s\n" % (OUTPUT, OUTPUT)


class Copies:
    """The copies on all hosts."""

    def __init__(self, copy: Copy, hosts: List[str], job: str) -> None:
        self.every = max(LOOK_S, len(hosts) / 10)
        self.pool = ThreadPoolExecutor(AT_ONCE)
        self.hosts = [HostCopy(copy, node, host, job) for node, host in enumerate(hosts)]
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
        if not self.each(HostCopy.begin):
            return 1
        due = 0.0
        while not self.over and not self.alone():
            if self.changed:
                self.changed = False
                if not self.each(HostCopy.send_again):
                    return 1
            if time.monotonic() >= due:
                due = time.monotonic() + self.every
                for one in self.hosts:
                    if not one.lock.locked():
                        self.pool.submit(one.look, last=False)
            time.sleep(0.1)
        tasks = [self.pool.submit(one.look, last=True) for one in self.hosts]
        wait(tasks, LAST_S)
        for one, task in zip(self.hosts, tasks):
            if not task.done() or one.problem:
                why = one.copy.attempt, one.problem or "no answer"
                say("%s: the end of its logs is only on that host, in %s: %s" % (one.host, *why))
        return 0

    def each(self, do: Callable[[HostCopy], None]) -> bool:
        """Do it on all hosts, and say so when each has its copy."""
        tasks = [self.pool.submit(do, one) for one in self.hosts]
        while wait(tasks, 0.2).not_done and not self.alone():
            pass
        failed = False
        for one, task in zip(self.hosts, tasks):
            if not task.done() or task.exception() is not None:
                failed = True
                why = str(task.exception()) if task.done() else "no answer"
                say("%s has no copy of the run: %s" % (one.host, shown(why.encode())))
        if not failed:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
        return not failed


def give_run(attempt: str, host: str, job: str) -> bool:
    """Copy the whole run of an attempt to a host for its job; False if that has the same folder. Raises CopyError,
    OSError and subprocess.SubprocessError."""
    run = os.path.dirname(os.path.dirname(attempt))
    one = HostCopy(Copy(attempt, [(run, run_files(run, attempt, whole=True))]), 0, host, job)
    one.begin()
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
    try:
        parts = [(run, run_files(run, args.attempt))]
        if args.copy_workdir is not None:
            parts.append((args.workdir, workdir_files(args.workdir, args.exclude, args.copy_workdir, run)))
        copy = Copy(args.attempt, parts, args.workdir)
    except (OSError, TooLargeError) as error:
        say("cannot copy the run to the hosts: %s" % error)
        return 1
    code = Copies(copy, args.hosts, os.environ.get("HPC_LAUNCH_JOB_ID", "")).run()
    sys.stdout.flush()
    os._exit(code)  # without waiting for threads that are still connecting
