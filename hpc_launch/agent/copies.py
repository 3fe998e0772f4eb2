"""Copies a run to hosts that share no folders with this one, and brings back what they write while it lives.

    copies.py ATTEMPT_FOLDER WORKDIR [--copy-workdir LIMIT] [--exclude PATTERN]... HOST...
    copies.py --whole ATTEMPT_FOLDER '' HOST    give the run to the first host, unless that shares its folder

Runs on the first host beside the job's script. It prints `ready` when every host has its copy, and again when each has
what changed before a SIGUSR2. On SIGUSR1, when all processes of the job have ended, it fetches the rest and ends. It
has its own connection to each host, by the user's ssh: when one is lost, the run goes on, and what the host wrote
meanwhile is fetched by the next one.

Self-contained: standard library of Python 3.6 or later.
"""

import argparse
import os
import secrets
import signal
import sys
import threading
import time
from typing import List

from hpc_launch.agent.copy_connection import Copy, HostCopy
from hpc_launch.agent.copy_list import TooLargeError, run_root, workdir_root
from hpc_launch.agent.copy_protocol import FIRST_HOST
from hpc_launch.agent.fan_out import say

AT_ONCE = 32
"""Hosts that get their copy at the same time."""
LAST_S = 30.0
"""To fetch the rest of all hosts."""
SHARED = 3
"""Exit code of `--whole` if the host shares the folder."""


class Copies:
    """The copies on all hosts."""

    def __init__(self, copy: Copy, hosts: List[str]) -> None:
        turn = threading.Semaphore(AT_ONCE)
        self.hosts = [HostCopy(copy, host, node, turn) for node, host in enumerate(hosts)]
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
        for channel in [one.channel for one in self.hosts]:
            if channel is not None:
                channel.ssh.kill()


def main(words: List[str]) -> None:
    """Copy, and bring back."""
    os.umask(0o022)
    code = run(words)
    sys.stdout.flush()
    os._exit(code)  # without waiting for threads that are still connecting


def run(words: List[str]) -> int:
    """The exit code."""
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
