"""The watcher of one node: records rank deaths, detects hangs and samples resource usage.

    python3 -I agent.pyz watch ATTEMPT_DIR NODE LAUNCHER [--each-process | --program] [--phases PIPE] [--hang-after S] …

Run by the host's `python3` outside any container. It exits with its parent, the launcher. A job also trains without it.
Beside it lie job_processes.py (the ranks), watch_node.py (memory and network), and watch_hang.py.

    ATTEMPT_DIR/agent/node-K.jsonl      one event per line: start, phase, ranks, raised (an exception ended the program
                                        of a rank), gone, sample, hang, end; of node 0 also output (its log has grown)
                                        and saved (rank 0 saved for so many seconds)
    ATTEMPT_DIR/agent/node-K.pipe       through which the processes tell their phase (sitecustomize.py)
    ATTEMPT_DIR/agent/beat-K            the heartbeat of node K (watch_node.py)
    ATTEMPT_DIR/agent/last-output       its mtime is when a log of any node last grew (one file for all nodes)
    ATTEMPT_DIR/agent/hang.json         created once, by the node that detects a hang; all nodes then dump stacks
    ATTEMPT_DIR/agent/stacks/rank-R.txt the stack of the rank, from py-spy if available
"""

import argparse
import contextlib
import json
import os
import re
import select
import signal
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from hpc_launch.agent.describe_host import memory_mib
from hpc_launch.agent.job_processes import below, open_pidfd, stat_of
from hpc_launch.agent.ranks import Rank, find_ranks, top_of_node
from hpc_launch.agent.watch_hang import Gpus, HangDetector
from hpc_launch.agent.watch_node import Heartbeat, NetworkRates, OomKills, kill_step

LOOK_S = 5.0
EAGER_S, EAGER_LOOK_S = 60.0, 0.5  # while ranks are starting: one may die within seconds
"""Seconds between two searches for new ranks. Deaths need no polling: the kernel wakes the watcher."""
VERDICT_S = 2.5
"""Seconds between two looks whether the attempt is over by its records; the next one takes longer to train."""
PHASE_S = 0.3
"""Seconds for which the marks of several processes are collected into one event."""
MOST_READS = 16
"""How often the pipe is read at the end: a process that is left over may write to it for ever."""
MARK = re.compile(r"([a-z]{1,16}) (-|[0-9]{1,9})$")
SAVED = re.compile(r"saved 0 ([0-9]{1,9})$")  # milliseconds
RAISED = re.compile(r"raised ([0-9]{1,9}) ([0-9]{1,14})$")  # milliseconds


class Watch:
    """The watcher's loop and state."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.launcher = options, options.launcher
        self.top = top_of_node(self.launcher) if options.each_process else self.launcher
        self.folder = os.path.join(options.attempt, "agent")
        self.logs = os.path.join(options.attempt, "logs")
        os.umask(os.umask(0o022) | 0o022)  # these files decide about nodes: nobody else may write them
        os.makedirs(os.path.join(self.folder, "stacks"), exist_ok=True)
        self.out = open(os.path.join(self.folder, "node-%d.jsonl" % options.node), "a", buffering=1)
        self.started_at = time.time()
        self.eager_until = self.started_at + EAGER_S
        self.ranks: Dict[int, Rank] = {}
        self.program = Rank(self.launcher, 0, (stat_of(self.launcher) + [""] * 20)[19]) if options.program else None
        self.gone: Set[int] = set()
        self.oom_kills = OomKills()
        self.hangs = HangDetector(options, self.say, self.note_deaths)
        self.places: Dict[str, Dict[str, int]] = {}
        self.network = NetworkRates()
        self.marks: Dict[str, str] = {}
        self.marks_due: Optional[float] = None
        self.output: Optional[Tuple[int, float]] = None
        self.poll = select.poll()
        self.gpus = Gpus(options.sample_every)

    def say(self, event: str, **facts: Any) -> None:
        self.out.write(json.dumps({"t": round(time.time(), 3), **facts, "event": event}) + "\n")

    def run(self) -> None:
        heartbeat = Heartbeat(self.folder, self.options.node, self.top) if self.options.heartbeat else None
        if heartbeat is not None:
            heartbeat.start()
        self.watch()
        if heartbeat is not None:
            heartbeat.end()

    def watch(self) -> None:
        self.say("start", node=self.options.node, host=os.uname().nodename, launcher=self.launcher, pid=os.getpid())
        poll = self.poll
        parent = open_pidfd(self.launcher)
        if parent is not None:
            poll.register(parent, select.POLLIN)
        if not self.options.each_process:
            self.oom_kills.note(-1, self.launcher)  # for ranks that end before they are found
        if self.options.phases:
            poll.register(0, select.POLLIN)  # the pipe, open for both ways: it never ends
        every = {
            self.look_whether_over: VERDICT_S,
            self.look: LOOK_S,
            self.check_hang: self.hangs.every_s,
            self.sample: self.options.sample_every,
            self.note_places: min(LOOK_S, self.options.sample_every),
        }
        due = dict.fromkeys(every, 0.0)
        for task in (self.check_hang, self.sample):
            due[task] = time.time() + every[task]
        while os.getppid() == self.launcher:
            wait_s = max(min(self.marks_due or due[self.look], *due.values()) - time.time(), 0.05)
            ready = {descriptor for descriptor, _ in poll.poll(wait_s * 1000)}
            self.note_marks(0 in ready)
            self.note_deaths(ready)
            if parent is not None and parent in ready:
                break
            for task, at in list(due.items()):
                if time.time() >= at:
                    task()
                    eager = task == self.look and time.time() < self.eager_until
                    every[self.check_hang] = self.hangs.every_s
                    due[task] = time.time() + (EAGER_LOOK_S if eager else every[task])
        self.note_deaths(set())
        for _ in range(MOST_READS):
            if not any(descriptor == 0 for descriptor, _ in poll.poll(0)):
                break
            self.note_marks(True)  # written shortly before the end
        self.note_marks(False, last=True)
        self.note_output()
        self.gpus.close()
        used = os.times()
        self.say(
            "end",
            cpu_s=round(used.user + used.system + used.children_user + used.children_system, 3),
            wall_s=round(time.time() - self.started_at, 3),
            oom_kill=self.oom_kills.killed(-1),
        )

    def look_whether_over(self) -> None:
        """End the ranks of an attempt that has a verdict: Slurm could not reach this node, and others train now."""
        if os.path.exists(os.path.join(self.options.attempt, "verdict.json")):
            kill_step(self.top)

    def look(self) -> None:
        """Find new ranks: at the start, and after the launcher restarted them."""
        self.note_output()
        ranks = find_ranks(
            below(self.top), {number: one for number, one in self.ranks.items() if one is not self.program}
        )
        if self.program is not None and not ranks:
            ranks = {0: self.program}
        new = {number: rank for number, rank in ranks.items() if self.ranks.get(number) is not rank}
        if not new:
            return
        self.ranks = ranks
        self.eager_until = time.time() + 2 * LOOK_S  # further ranks appear within seconds
        for rank in new.values():
            self.gone.discard(rank.rank)
            if rank.pidfd is not None:
                self.poll.register(rank.pidfd, select.POLLIN)
        self.say("ranks", ranks={str(rank.rank): rank.pid for rank in new.values()})
        for rank in new.values():
            self.oom_kills.note(rank.rank, rank.pid)

    def note_marks(self, ready: bool, last: bool = False) -> None:
        """Record how far the processes have come: the newest mark of each rank, and of the launcher as `-`."""
        now = time.time()
        for line in os.read(0, 1 << 16).decode("ascii", "replace").splitlines() if ready else ():
            saved = SAVED.match(line)
            if saved is not None:
                self.say("saved", seconds=int(saved.group(1)) / 1000.0)
            raised = RAISED.match(line)
            if raised is not None:
                self.say("raised", rank=int(raised.group(1)), t=int(raised.group(2)) / 1000.0)
            found = MARK.match(line)
            if found is None:
                continue
            mark, process = found.groups()
            if mark == "launcher" and process in self.marks:
                continue  # another program that the launcher runs
            if process == "-":
                self.marks.clear()  # it starts its ranks later, if for another time
            self.marks[process] = mark
            self.marks_due = self.marks_due or now + PHASE_S
        if self.marks_due is not None and (last or now >= self.marks_due):
            self.marks_due = None
            self.say("phase", marks=self.marks)
        if last and self.options.phases:
            with contextlib.suppress(OSError):
                os.unlink(self.options.phases)

    def note_deaths(self, ready: Set[int]) -> None:
        """Record each rank's end immediately: the earliest record of all nodes is the first failure. Those that are
        found together have one time, because nothing tells which of them came first."""
        failed, now = False, round(time.time(), 3)
        for rank in self.ranks.values():
            if rank.rank in self.gone or (rank.pidfd is not None and ready and rank.pidfd not in ready) or rank.alive():
                continue
            code, signal_number = rank.exit_status()
            self.gone.add(rank.rank)
            if rank.pidfd is not None:
                self.poll.unregister(rank.pidfd)
                os.close(rank.pidfd)
                rank.pidfd = None
            killed = self.oom_kills.killed(rank.rank)
            self.say("gone", rank=rank.rank, pid=rank.pid, exit_code=code, signal=signal_number, oom_kill=killed, t=now)
            failed = failed or code != 0
        for text in self.gpus.faults() if failed else ():
            self.say("gpu_fault", text=text)

    def progress_log(self) -> Optional[Tuple[int, float]]:
        """Size and time of the last write of the log that shows progress: the lowest rank's own, else the node's."""
        node = os.path.join(self.logs, "node-%d" % self.options.node)
        for ending in [".rank-%d.log" % min(self.ranks, default=0), ".log"]:
            try:
                status = os.stat(node + ending)
            except OSError:
                continue
            return status.st_size, round(status.st_mtime, 3)
        return None

    def note_output(self) -> None:
        """Record how long the log of node 0 is, if it has grown: which step was reached when."""
        output = self.progress_log() if self.options.node == 0 else None
        if output is not None and output[0] and output != self.output:
            self.output = output
            self.say("output", size=output[0], written=output[1])

    def check_hang(self) -> None:
        """End the ranks if they hang."""
        self.hangs.check(self.ranks, self.gone, self.gpus)

    def note_places(self) -> None:
        """Count what each rank waits in: a straggler is rarely where the others wait."""
        for rank in self.ranks.values():
            if rank.rank not in self.gone:
                counts = self.places.setdefault(str(rank.rank), {})
                place = rank.place()
                counts[place] = counts.get(place, 0) + 1

    def sample(self) -> None:
        available, whole = memory_mib()
        rates = self.network.sample()
        alive = [rank for rank in self.ranks.values() if rank.rank not in self.gone]
        self.say(
            "sample",
            mem_available_mib=available,
            mem_mib=whole,
            rss_mib={str(rank.rank): round(rank.rss_mib()) for rank in alive},
            cpu_s={str(rank.rank): round(rank.cpu_s(), 1) for rank in alive},
            places=self.places,
            log=self.progress_log(),
            net_bytes_s=rates,
            gpus=self.gpus.sample(),
            nvlinks=self.gpus.links(),
            load=os.getloadavg()[0],
        )
        self.places = {}


def main(words: List[str]) -> None:
    """Parse the options and watch the node."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attempt")
    parser.add_argument("node", type=int)
    # An argument rather than getppid(): if the launcher has ended already, the parent is init.
    parser.add_argument("launcher", type=int, help="the process id of the parent")
    parser.add_argument("--each-process", action="store_true", help="the parent is a rank, beside the others")
    parser.add_argument("--program", action="store_true", help="the parent is the program, or starts its processes")
    parser.add_argument("--phases", metavar="PIPE", help="the named pipe behind standard input")
    parser.add_argument("--heartbeat", action="store_true", help="write agent/beat-K every few seconds")
    parser.add_argument("--hang-after", type=float, default=0.0, help="seconds of silence and idleness; 0: never")
    parser.add_argument("--busy-after", type=float, default=0.0, help="seconds of silence though busy; 0: never")
    parser.add_argument("--sample-every", type=float, default=30.0, help="seconds between two samples")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        # Warnings and the end of the step signal every process; the watcher exits with the launcher.
        signal.signal(number, signal.SIG_IGN)
    os.environ.pop("RANK", None)  # what the watcher runs, such as nvidia-smi, is not a rank
    Watch(parser.parse_args(words)).run()
