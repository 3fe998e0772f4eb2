"""Copies a run to hosts that share no folders with this one, and brings back what they write while it lives.

    hpc_launch_copies.py ATTEMPT_FOLDER WORKDIR [--copy-workdir LIMIT] [--exclude PATTERN]... HOST...
    hpc_launch_copies.py --whole ATTEMPT_FOLDER '' HOST    give the run to the first host, unless that shares its folder

Runs on the first host beside the job's script. It prints `ready` when every host has its copy, and again when each has
what changed before a SIGUSR2. On SIGUSR1, when all processes of the job have ended, it fetches the rest and ends. It
has its own connection to each host, by the user's ssh: when one is lost, the run goes on, and what the host wrote
meanwhile is fetched by the next one.

Self-contained: standard library of Python 3.6 or later.
"""

import argparse
import json
import os
import secrets
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, Iterator, List, Set, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out

import hpc_launch_copy_host as host_program
from hpc_launch_connection import SSH, shown
from hpc_launch_copy_host import CHUNK, FIRST_HOST, MARKS, OUTPUT, Fields, Frames, digest_of, frame
from hpc_launch_copy_list import TooLargeError, run_root, workdir_root
from hpc_launch_copy_store import Store, time_of
from hpc_launch_fan_out import say

AT_ONCE = 32
"""Hosts that get their copy at the same time."""
READY_S = 600.0
ANSWER_S = 60.0
"""Without a byte from a host while something is expected of it."""
LAST_S = 30.0
"""To fetch the rest of all hosts."""
AGAIN_S = 5.0
"""Between a lost connection and the next one."""
MOST_LOGIN = 64 << 20
"""Bytes that a host may print at login."""
LOOK_S = 0.5
SHARED = 3
"""Exit code of `--whole` if the host shares the folder."""


class LostError(Exception):
    """The connection to a host has ended, or it sent something unexpected."""


class RefusedError(Exception):
    """The host cannot have the copy."""


class Copy:
    """What all hosts get."""

    def __init__(self, attempt: str, workdir: str, roots: List[Dict[str, Any]]) -> None:
        self.attempt, self.roots = attempt, roots
        self.workdir = workdir
        """What each host must have by itself, or ''."""
        self.token = digest_of(os.path.join(attempt, FIRST_HOST))
        self.places = [(root["path"], entry) for root in roots for entry in root["entries"]]

    def file(self, number: int) -> Iterator[bytes]:
        """The frames of a file. Raises OSError, IndexError."""
        path, entry = self.places[number]
        left = entry[2]
        with open(os.path.join(path, entry[0]), "rb") as file:
            while True:
                data = file.read(min(CHUNK, left))
                left -= len(data)
                last = not data or left == 0
                yield frame({"is": "file", "last": last}, data)
                if last:
                    return


class Connection(threading.Thread):
    """The copy on one host: a thread that connects again when the connection is lost."""

    def __init__(self, copy: Copy, host: str, node: int, turn: threading.Semaphore) -> None:
        super().__init__(daemon=True)
        self.copy, self.host, self.node, self.turn = copy, host, node, turn
        self.store = Store(copy.attempt, node)
        self.ready, self.done = threading.Event(), threading.Event()
        self.asked = threading.Event()
        """Whether this connection has to end: for the next one, or, with `finish`, for good."""
        self.finish = False
        self.shared = False
        self.problem = ""
        self.ssh: Any = None
        self.waiting: List[Tuple[Fields, bytes]] = []

    def run(self) -> None:
        while not self.done.is_set():
            last = self.finish
            try:
                with self.turn:
                    self.shared = self.connect()
                self.ready.set()
                if self.shared:
                    break
                self.follow()
                if self.finish:
                    break
                self.asked.clear()
            except (
                subprocess.SubprocessError,
                OSError,
                ValueError,
                LookupError,
                TypeError,
                RecursionError,
                LostError,
                RefusedError,
            ) as error:
                problem = self.why(error)
                if not self.ready.is_set() or last:
                    self.problem = problem
                    break
                if not self.problem:
                    say("%s: what it writes cannot be fetched now: %s" % (self.host, problem))
                self.problem = problem
                self.asked.wait(AGAIN_S)
            finally:
                self.close()
        self.done.set()

    def why(self, error: Exception) -> str:
        """What ended the connection."""
        text = str(error)
        if isinstance(error, LostError) and self.ssh is not None:
            self.ssh.stdin.close()
            try:
                self.ssh.wait(5)
            except subprocess.TimeoutExpired:
                self.ssh.kill()
            os.set_blocking(self.ssh.stderr.fileno(), False)
            said = [line for line in (self.ssh.stderr.read() or b"")[-4096:].splitlines() if line.strip()]
            text += ": %s" % shown(said[-1]) if said else ""
        return str(shown(text[:400].encode("utf-8", "replace")))

    def close(self) -> None:
        """End the connection."""
        if self.ssh is not None:
            for stream in (self.ssh.stdin, self.ssh.stdout, self.ssh.stderr):
                try:
                    stream.close()
                except OSError:
                    pass
            self.ssh.kill()
            self.ssh.wait()
            self.ssh = None

    def connect(self) -> bool:
        """Start the host's end and give it its copy. Returns whether it shares this folder and needs none."""
        mark = secrets.token_hex(16)
        with open(host_program.__file__, "rb") as file:
            program = file.read()
        # Bash reads no further than this line, which reads the program and no further.
        starter = (
            "import os, sys\nleft, text = %d, b''\n"
            "while left:\n part = os.read(0, left)\n part or sys.exit(1)\n left -= len(part)\n text += part\n"
            "exec(compile(text, 'hpc_launch_copy_host.py', 'exec'))\n" % len(program)
        )
        line = "exec python3 -I -c %s %s %s\n" % (shlex.quote(starter), mark[:16], mark[16:])
        self.frames, self.waiting = Frames(), []
        self.ssh = subprocess.Popen(
            [*SSH, "--", self.host, "bash -s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.write(line.encode() + program)
        self.skip_login((mark + "\n").encode())
        copy = self.copy
        attempt = os.path.relpath(copy.attempt, copy.roots[0]["path"])
        # A host that had its copy only sends: what is here has changed since.
        roots = [dict(root, entries=[]) for root in copy.roots] if self.ready.is_set() else copy.roots
        asked = {"roots": roots, "attempt": attempt, "node": self.node, "token": copy.token}
        self.write(frame(dict(asked, known=self.store.sizes, workdir=copy.workdir)))
        fields, data = self.next(READY_S)
        if fields["is"] == "shared":
            return True
        for number in json.loads(data.decode()):
            for part in copy.file(int(number)):
                self.write(part)
        self.next(READY_S)
        return False

    def skip_login(self, mark: bytes) -> None:
        """Drop what the host prints at login."""
        rest, dropped = b"", 0
        while mark not in rest:
            dropped += len(rest)
            data = self.read(ANSWER_S)
            rest = rest[-len(mark) :] + data
            if dropped > MOST_LOGIN:
                raise LostError("it prints too much at login")
        self.feed(rest.partition(mark)[2])

    def write(self, data: bytes) -> None:
        """Send data. Raises LostError."""
        try:
            self.ssh.stdin.write(data)
            self.ssh.stdin.flush()
        except OSError:
            raise LostError("the connection ended") from None

    def read(self, seconds: float) -> bytes:
        """What has arrived; b'' if nothing did in time. Raises LostError at the end."""
        if not select.select([self.ssh.stdout], [], [], seconds)[0]:
            if seconds >= ANSWER_S:
                raise LostError("no answer")
            return b""
        data = os.read(self.ssh.stdout.fileno(), 1 << 18)
        if not data:
            raise LostError("the connection ended")
        return data

    def feed(self, data: bytes) -> None:
        """Take frames. Raises RefusedError."""
        for fields, body in self.frames.feed(data):
            if fields.get("is") == "refused":
                raise RefusedError(str(fields.get("why")))
            self.waiting.append((fields, body))

    def next(self, seconds: float) -> Tuple[Fields, bytes]:
        """The next frame."""
        while not self.waiting:
            self.feed(self.read(seconds))
        return self.waiting.pop(0)

    def follow(self) -> None:
        """Write what the host sends, and let it know what all hosts must see, until the end."""
        told: Set[str] = set()
        output, beat, last = time_of(os.path.join(self.copy.attempt, OUTPUT)) or 0.0, 0.0, False
        while True:
            self.feed(self.read(LOOK_S))
            now = time.monotonic()
            for fields, body in self.waiting:
                if fields["is"] == "end" and last:
                    self.problem = ""
                    self.ssh.wait(ANSWER_S)  # its last act is to remove the environment, which the next one may bring
                    return
                self.store.take(fields, body)
            self.waiting = []
            if now - beat < LOOK_S and not (self.asked.is_set() and not last):
                continue
            beat = now
            news = b"\n"
            for name in MARKS:
                path = os.path.join(self.copy.attempt, name)
                if name not in told and os.path.isfile(path):
                    told.add(name)
                    with open(path, "rb") as file:
                        news += frame({"is": "mark", "path": name}, file.read(4096))
            grown = time_of(os.path.join(self.copy.attempt, OUTPUT)) or 0.0
            if grown > output + LOOK_S:
                output = grown
                news += frame({"is": "output", "age": max(time.time() - grown, 0.0)})
            if self.asked.is_set() and not last:
                last = True
                news += frame({"is": "last"})
            self.write(news)


class Copies:
    """The copies on all hosts."""

    def __init__(self, copy: Copy, hosts: List[str]) -> None:
        turn = threading.Semaphore(AT_ONCE)
        self.hosts = [Connection(copy, host, node, turn) for node, host in enumerate(hosts)]
        self.folder = copy.attempt
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

    def run(self, once: bool) -> int:
        """Until the job has ended, or `once`. Returns the exit code."""
        self.over = once
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
            one.asked.set()
        end = time.monotonic() + LAST_S
        for one in self.hosts:
            if not one.done.wait(max(end - time.monotonic(), 0.0)) or one.problem:
                why = one.problem or "no answer"
                say("%s: the end of its logs is only there, in %s: %s" % (one.host, self.folder, why))
        return 0

    def all_ready(self) -> bool:
        """Wait until each host has its copy, and say so."""
        for one in self.hosts:
            while not (one.ready.wait(0.2) or one.done.is_set() or self.alone()):
                pass
        failed = [one for one in self.hosts if not one.ready.is_set()]
        for one in failed:
            say("%s did not get its copy of the run: %s" % (one.host, one.problem))
        if not failed:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
        return not failed

    def send_again(self) -> bool:
        """Let each host have what has changed in the run folder, by another connection."""
        copy = self.hosts[0].copy
        roots = [run_root(copy.roots[0]["path"], copy.attempt), *copy.roots[1:]]
        changed = Copy(copy.attempt, copy.workdir, roots)
        for one in self.hosts:
            one.copy = changed
            if not one.shared:
                one.ready.clear()
                one.asked.set()
        return self.all_ready()

    def end(self) -> None:
        """End the connections, whatever happened."""
        for ssh in [one.ssh for one in self.hosts]:
            if ssh is not None:
                ssh.kill()


def main(words: List[str]) -> int:
    """Copy, and bring back."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("attempt")
    parser.add_argument("workdir")
    parser.add_argument("--copy-workdir", type=int, metavar="BYTES")
    parser.add_argument("--exclude", action="append", default=[])
    parser.add_argument("hosts", nargs="+")
    args = parser.parse_args(words)
    run = os.path.dirname(os.path.dirname(args.attempt))
    try:
        os.makedirs(os.path.join(args.attempt, "agent"), exist_ok=True)
        with open(os.path.join(args.attempt, FIRST_HOST), "w") as file:
            file.write(secrets.token_hex(32))
        roots = [run_root(run, args.attempt, args.whole)]
        if args.copy_workdir is not None:
            roots.append(workdir_root(args.workdir, args.exclude, args.copy_workdir, run))
        copies = Copies(Copy(args.attempt, "" if len(roots) > 1 else args.workdir, roots), args.hosts)
    except (OSError, TooLargeError) as error:
        say("cannot copy the run to the hosts: %s" % error)
        return 1
    try:
        code = copies.run(args.whole)
        return SHARED if args.whole and copies.hosts[0].shared else code
    finally:
        copies.end()


if __name__ == "__main__":
    os.umask(0o022)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # without waiting for threads that are still connecting
