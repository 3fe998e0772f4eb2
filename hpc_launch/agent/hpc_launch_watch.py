"""The watcher of one node: records rank deaths, detects hangs and samples resource usage.

    python3 -I hpc_launch_watch.py ATTEMPT_DIR NODE LAUNCHER [--each-process] [--phases PIPE] [--hang-after S] …

Self-contained: standard library of Python 3.6 or later, copied into the run folder and run by the host's `python3`
outside any container. It exits with its parent, the launcher. A job also trains without it.

    ATTEMPT_DIR/agent/node-K.jsonl      one event per line: start, phase, ranks, gone, sample, hang, end
    ATTEMPT_DIR/agent/node-K.pipe       through which the processes tell their phase (sitecustomize.py)
    ATTEMPT_DIR/agent/last-output       its mtime is when a log of any node last grew (one file for all nodes)
    ATTEMPT_DIR/agent/hang.json         created once, by the node that detects a hang; all nodes then dump stacks
    ATTEMPT_DIR/agent/stacks/rank-R.txt the stack of the rank, from py-spy if available

Without py-spy, SIGABRT makes Python's faulthandler (PYTHONFAULTHANDLER=1) print all threads' stacks to the log before
the process ends.
"""

import argparse
import ctypes
import glob
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional, Set, Tuple

PIDFD_OPEN = 434  # the same number on every architecture (pidfd_open(2))
LOOK_S = 5.0
EAGER_S, EAGER_LOOK_S = 60.0, 0.5  # while ranks are starting: one may die within seconds
"""Seconds between two searches for new ranks. Deaths need no polling: the kernel wakes the watcher."""
PHASE_S = 0.3
"""Seconds for which the marks of several processes are collected into one event."""
MARK = re.compile(r"([a-z]{1,16}) (-|[0-9]{1,9})")
HANG_LOOK_S = 15.0
IDLE_SHARE = 0.02
"""CPU cores per rank below which a rank is idle. A rank that waits inside NCCL is busy: see --busy-after."""
SHELLS = {"bash", "sh", "dash", "sed", "tee", "env", "numactl", "apptainer", "singularity", "starter", "starter-suid"}
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def text_of(path: str, limit: int = 1 << 16) -> str:
    """The first `limit` bytes of a file (-1: all of it); '' if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def stat_of(pid: int) -> List[str]:
    """The fields of /proc/PID/stat after the name (proc(5)): [0] is the state. Empty if the process is gone."""
    return text_of("/proc/%d/stat" % pid).rpartition(")")[2].split()


def below(pid: int) -> List[int]:
    """All descendants of `pid`, parents first."""
    descendants, pending = [], [pid]
    while pending:
        here = pending.pop(0)
        lists = glob.glob("/proc/%d/task/*/children" % here)
        children = [int(word) for path in lists for word in text_of(path).split()]
        descendants += children
        pending += children
    return descendants


def environment_of(pid: int) -> Dict[str, str]:
    """The initial environment of a process."""
    pairs = (item.partition("=") for item in text_of("/proc/%d/environ" % pid, -1).split("\0"))
    return {name: value for name, _, value in pairs}


def open_pidfd(pid: int) -> Optional[int]:
    """A descriptor that becomes readable when the process ends; None on kernels before 5.3."""
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        descriptor = ctypes.CDLL(None).syscall(PIDFD_OPEN, pid, 0)
    except (OSError, AttributeError):
        return None
    return descriptor if descriptor >= 0 else None


class Rank:
    """One training process on this node."""

    def __init__(self, pid: int, rank: int, start_time: str) -> None:
        self.pid, self.rank, self.start_time = pid, rank, start_time
        self.pidfd = open_pidfd(pid)

    def alive(self) -> bool:
        fields = stat_of(self.pid)
        return len(fields) > 19 and fields[19] == self.start_time and fields[0] not in "ZX"

    def exit_status(self) -> Tuple[Optional[int], Optional[int]]:
        """(exit code, signal), None if unknown: available only until the launcher reaps the process."""
        fields = stat_of(self.pid)
        if len(fields) < 50 or fields[19] != self.start_time or fields[0] != "Z":
            return None, None
        status = int(fields[49])
        return (None, status & 127) if status & 127 else (status >> 8, None)

    def cpu_s(self) -> float:
        fields = stat_of(self.pid)
        return sum(map(int, fields[11:15])) / TICKS if len(fields) > 14 else 0.0

    def place(self) -> str:
        """What the main thread does: `running`, the kernel function it waits in (proc(5), wchan), or its state."""
        fields = stat_of(self.pid)
        if not fields or fields[0] == "R":
            return "running"
        waits = text_of("/proc/%d/wchan" % self.pid).strip()
        return waits if waits not in ("", "0") else fields[0]

    def rss_mib(self) -> float:
        fields = stat_of(self.pid)
        return int(fields[21]) * PAGE_MIB if len(fields) > 21 else 0.0


def find_ranks(launcher: int, known: "Dict[int, Rank]") -> "Dict[int, Rank]":
    """The topmost process of each rank below the launcher, ignoring shells and container starters."""
    ranks = dict(known)
    for pid in below(launcher):
        name = text_of("/proc/%d/comm" % pid).strip()
        if name in SHELLS or any(rank.pid == pid for rank in ranks.values()):
            continue
        environment = environment_of(pid)
        word = environment.get("RANK", "")
        if not word.isdigit() or "LOCAL_RANK" not in environment:
            continue
        number = int(word)
        if number not in ranks or not ranks[number].alive():
            fields = stat_of(pid)
            if len(fields) > 19:
                ranks[number] = Rank(pid, number, fields[19])
    return ranks


def top_of_node(process: int) -> int:
    """The common ancestor of the node's ranks, if they were started separately and `process` is one of them."""
    wanted = environment_of(process).get("LOCAL_WORLD_SIZE", "")
    top = process
    for _ in range(4):
        above = stat_of(top)[1:2]
        if not above or int(above[0]) <= 1:
            break
        top = int(above[0])
        if wanted.isdigit() and len(find_ranks(top, {})) >= int(wanted):
            break
    return top


def oom_files(pid: int) -> List[str]:
    """The files in which the kernel counts OOM kills in a process's cgroup: v2, else v1, which counts a kill only in
    the group of the killed process."""
    for line in text_of("/proc/%d/cgroup" % pid).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            files = ["/sys/fs/cgroup" + path + "/memory.events"]
        elif "memory" in controllers.split(","):
            parts = [part for part in path.split("/") if part]
            files = [
                "/sys/fs/cgroup/memory/" + "/".join(parts[:n]) + "/memory.oom_control" for n in range(1, len(parts) + 1)
            ]
        else:
            continue
        if oom_kills(files) is not None:
            return files
    return []


def oom_kills(files: List[str]) -> Optional[int]:
    """The sum of the counts in these files; None if there are none, e.g. because the cgroup is gone."""
    counts = [
        int(word[1])
        for file in files
        for word in map(str.split, text_of(file).splitlines())
        if word[:1] == ["oom_kill"]
    ]
    return sum(counts) if counts else None


def oom_kills_of_host() -> Optional[int]:
    """The number of OOM kills on the node (Linux 4.13 and later)."""
    for line in text_of("/proc/vmstat").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None


def memory_mib() -> Tuple[int, int]:
    """(available, total) memory of the node."""
    rows = dict(line.split(":", 1) for line in text_of("/proc/meminfo").splitlines() if ":" in line)
    available, whole = (int(rows.get(key, "0 kB").split()[0]) // 1024 for key in ("MemAvailable", "MemTotal"))
    return available, whole


def network_bytes() -> Dict[str, List[int]]:
    """{interface: [received, sent]}, including InfiniBand ports."""
    result = {}  # type: Dict[str, List[int]]
    for line in text_of("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if name.strip() != "lo" and len(fields) > 8:
            result[name.strip()] = [int(fields[0]), int(fields[8])]
    for port in glob.glob("/sys/class/infiniband/*/ports/*/counters"):
        words = [text_of(port + "/port_" + way + "_data").strip() for way in ("rcv", "xmit")]
        if all(word.isdigit() for word in words):
            result[port.split("/")[4] + ":" + port.split("/")[6]] = [
                4 * int(word) for word in words
            ]  # units of 4 bytes
    return result


NVIDIA_FIELDS = (
    "index,utilization.gpu,memory.used,temperature.gpu,power.draw,clocks.sm,clocks_throttle_reasons.active,"
    "ecc.errors.uncorrected.volatile.total"
)
SMI_S = 10.0
"""Time limit of one call of nvidia-smi."""
SMI_LOST = 15
"""nvidia-smi's exit code if a GPU has fallen off the bus (man nvidia-smi)."""
NVIDIA_KEYS = ("index", "util", "mem_mib", "temp_c", "power_w", "sm_mhz", "throttle", "ecc")


class Gpus:
    """The GPUs of the node, from a looping nvidia-smi or the files of the AMD driver."""

    def __init__(self, every_s: float) -> None:
        self.latest = {}  # type: Dict[str, Dict[str, Any]]
        self.process = None  # type: Optional[subprocess.Popen[bytes]]
        self.asked_links = None  # type: Optional[subprocess.Popen[bytes]]
        self.links_up = None  # type: Optional[int]
        self.ecc = {}  # type: Dict[str, int]
        self.rest = ""
        if shutil.which("nvidia-smi"):
            words = [
                "nvidia-smi",
                "--query-gpu=" + NVIDIA_FIELDS,
                "--format=csv,noheader,nounits",
                "-l",
                str(int(max(every_s, 5))),
            ]
            try:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
                if self.process.stdout is not None:
                    os.set_blocking(self.process.stdout.fileno(), False)
                self.asked_links = subprocess.Popen(
                    ["nvidia-smi", "nvlink", "--status"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError:
                pass

    def links(self) -> Optional[int]:
        """The number of active NVLinks on the node; None if unknown. Queried once, at the start."""
        asked = self.asked_links
        if asked is not None and asked.poll() is not None:
            self.asked_links = None
            text = asked.stdout.read().decode("ascii", "replace") if asked.stdout else ""
            if asked.returncode == 0:
                self.links_up = sum(" GB/s" in line for line in text.splitlines())
        return self.links_up

    def sample(self) -> List[Dict[str, Any]]:
        """One object per GPU; empty without GPUs."""
        if self.process is not None:
            data = (self.process.stdout.read() if self.process.stdout else b"") or b""
            lines = (self.rest + data.decode("ascii", "replace")).split("\n")
            self.rest = lines.pop()
            for line in lines:
                values = [word.strip() for word in line.split(",")]
                if len(values) == len(NVIDIA_KEYS):
                    gpu = self.latest[values[0]] = {key: number(value) for key, value in zip(NVIDIA_KEYS, values)}
                    if isinstance(gpu["ecc"], int):
                        self.ecc.setdefault(values[0], gpu["ecc"])
            return list(self.latest.values())
        samples = []  # type: List[Dict[str, Any]]
        for busy in sorted(glob.glob("/sys/class/drm/card*/device/gpu_busy_percent")):
            folder = os.path.dirname(busy)
            heat = [text_of(path).strip() for path in glob.glob(folder + "/hwmon/hwmon*/temp1_input")]
            used = text_of(folder + "/mem_info_vram_used").strip()
            samples.append({
                "index": len(samples),
                "util": number(text_of(busy).strip()),
                "mem_mib": int(used) // 2**20 if used.isdigit() else None,
                "temp_c": int(heat[0]) // 1000 if heat and heat[0].isdigit() else None,
            })  # fmt: skip
        return samples

    def faults(self) -> List[str]:
        """The GPUs that broke since the first sample or the last call, by nvidia-smi now. Takes up to some seconds."""
        if self.process is None:
            return []
        self.sample()
        words = ["nvidia-smi", "--query-gpu=index,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"]
        try:
            asked = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            text = asked.communicate(timeout=SMI_S)[0].decode("ascii", "replace")
        except (OSError, subprocess.TimeoutExpired):
            return []
        if asked.returncode == SMI_LOST:
            return ["nvidia-smi: " + (text.strip() or "a GPU is lost")[:200]]
        found = []
        for line in text.splitlines():
            index, _, count = (word.strip() for word in line.partition(","))
            before = self.ecc.get(index)
            if before is not None and count.isdigit() and int(count) > before:
                self.ecc[index] = int(count)
                found.append("GPU %s: %s uncorrectable memory errors, %d at the start" % (index, count, before))
        return found

    def close(self) -> None:
        for process in (self.process, self.asked_links):
            if process is not None:
                process.kill()
                process.wait()


def number(word: str) -> Any:
    """The number in a field, else its text; None for 'not available'."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return None if word.startswith("[") or word in ("", "N/A") else word


class Watch:
    """The watcher's loop and state."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.launcher = options, options.launcher
        self.top = top_of_node(self.launcher) if options.each_process else self.launcher
        self.folder = os.path.join(options.attempt, "agent")
        self.logs = os.path.join(options.attempt, "logs")
        os.makedirs(os.path.join(self.folder, "stacks"), exist_ok=True)
        self.out = open(os.path.join(self.folder, "node-%d.jsonl" % options.node), "a", buffering=1)
        self.output_mark = os.path.join(self.folder, "last-output")
        self.hang_file = os.path.join(self.folder, "hang.json")
        self.started_at = time.time()
        self.eager_until = self.started_at + EAGER_S
        limits = [limit for limit in (options.hang_after, options.busy_after) if limit]
        self.hang_every = min([HANG_LOOK_S] + [max(limit / 4, 1) for limit in limits])
        self.ranks = {}  # type: Dict[int, Rank]
        self.gone = set()  # type: Set[int]
        self.oom = {}  # type: Dict[int, Tuple[List[str], Optional[int]]]
        self.oom_host = oom_kills_of_host()
        self.log_size = -1
        self.cpu_last = {}  # type: Dict[int, float]
        self.cpu_at = time.time()
        self.idle_since = None  # type: Optional[float]
        self.places = {}  # type: Dict[str, Dict[str, int]]
        self.net = None  # type: Optional[Tuple[Dict[str, List[int]], float]]
        self.marks = {}  # type: Dict[str, str]
        self.marks_due = None  # type: Optional[float]
        self.poll = select.poll()
        self.gpus = Gpus(options.sample_every)

    def say(self, event: str, **facts: Any) -> None:
        facts.update(t=round(time.time(), 3), event=event)
        self.out.write(json.dumps(facts) + "\n")

    def run(self) -> None:
        self.say("start", node=self.options.node, host=os.uname().nodename, launcher=self.launcher, pid=os.getpid())
        poll = self.poll
        parent = open_pidfd(self.launcher)
        if parent is not None:
            poll.register(parent, select.POLLIN)
        if self.options.phases:
            poll.register(0, select.POLLIN)  # the pipe, open for both ways: it never ends
        due = {
            self.look: 0.0,
            self.check_hang: time.time() + self.hang_every,
            self.sample: time.time() + self.options.sample_every,
            self.note_places: 0.0,
        }
        every = {
            self.look: LOOK_S,
            self.check_hang: self.hang_every,
            self.sample: self.options.sample_every,
            self.note_places: min(LOOK_S, self.options.sample_every),
        }
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
                    due[task] = time.time() + (EAGER_LOOK_S if eager else every[task])
        self.note_deaths(set())
        self.note_marks(False, last=True)
        self.gpus.close()
        used = os.times()
        self.say(
            "end",
            cpu_s=round(used.user + used.system + used.children_user + used.children_system, 3),
            wall_s=round(time.time() - self.started_at, 3),
        )

    def look(self) -> None:
        """Find new ranks: at the start, and after the launcher restarted them."""
        ranks = find_ranks(self.top, self.ranks)
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
            files = oom_files(rank.pid)
            self.oom[rank.rank] = (files, oom_kills(files))

    def note_marks(self, ready: bool, last: bool = False) -> None:
        """Record how far the processes have come: the newest mark of each rank, and of the launcher as `-`."""
        now = time.time()
        for line in os.read(0, 1 << 16).decode("ascii", "replace").splitlines() if ready else ():
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
            try:
                os.unlink(self.options.phases)
            except OSError:
                pass

    def note_deaths(self, ready: Set[int]) -> None:
        """Record each rank's end immediately: the earliest record of all nodes is the first failure."""
        failed = False
        for rank in self.ranks.values():
            if rank.rank in self.gone or (rank.pidfd is not None and ready and rank.pidfd not in ready) or rank.alive():
                continue
            code, signal_number = rank.exit_status()
            self.gone.add(rank.rank)
            if rank.pidfd is not None:
                self.poll.unregister(rank.pidfd)
                os.close(rank.pidfd)
                rank.pidfd = None
            killed = self.killed_for_memory(rank.rank)
            self.say("gone", rank=rank.rank, pid=rank.pid, exit_code=code, signal=signal_number, oom_kill=killed)
            failed = failed or code != 0
        for text in self.gpus.faults() if failed else ():
            self.say("gpu_fault", text=text)

    def killed_for_memory(self, rank: int) -> Optional[bool]:
        """Whether a rank that just ended was OOM-killed; None if unknown.

        An unchanged counter of the node proves that it was not; a changed one may stem from other processes.
        """
        host = oom_kills_of_host()
        if host is not None and host == self.oom_host:
            return False
        files, before = self.oom.get(rank, ([], None))
        now = oom_kills(files)
        if now is not None and before is not None and now > before:
            return True
        return None if host is not None or now is None or before is None else False

    def log_bytes(self) -> int:
        """The total size of this node's logs, by name: listing the folder would list the logs of all nodes."""
        node = "node-%d" % self.options.node
        size = 0
        for name in [node + ".log"] + ["%s.rank-%d.log" % (node, rank) for rank in self.ranks]:
            try:
                size += os.stat(os.path.join(self.logs, name)).st_size
            except OSError:
                pass
        return size

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

    def check_hang(self) -> None:
        """Detect a hang: no output on any node, and no activity here. Busy ranks (spinning in NCCL) get more time."""
        now = time.time()
        size = self.log_bytes()
        if size != self.log_size:
            self.log_size = size
            with open(self.output_mark, "a"):
                os.utime(self.output_mark, None)
        cpu = {rank.rank: rank.cpu_s() for rank in self.ranks.values() if rank.rank not in self.gone}
        spent = sum(max(cpu[number] - self.cpu_last.get(number, 0.0), 0.0) for number in cpu)
        share = spent / max(now - self.cpu_at, 0.1) / max(len(cpu), 1)
        self.cpu_last, self.cpu_at = cpu, now
        gpu_busy = any((gpu.get("util") or 0) > 1 for gpu in self.gpus.sample())
        if share >= IDLE_SHARE or gpu_busy:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now
        if os.path.exists(self.hang_file):
            self.end_hang()
        silent = now - os.stat(self.output_mark).st_mtime
        idle = self.idle_since is not None and now - self.idle_since >= self.options.hang_after * 0.5
        limit = self.options.hang_after if idle else self.options.busy_after
        if cpu and limit and silent >= limit:
            report = {
                "t": now,
                "node": self.options.node,
                "host": os.uname().nodename,
                "silent_s": round(silent),
                "idle": idle,
            }
            try:
                with open(self.hang_file, "x") as file:
                    file.write(json.dumps(report) + "\n")
            except FileExistsError:
                pass
            self.end_hang()

    def wait_for_other_nodes(self) -> None:
        """Wait until the watchers of all nodes have seen hang.json. Killing a rank makes the ranks that wait for it
        fail, and their stacks, which show who is missing, would be lost."""
        try:
            since = json.loads(text_of(self.hang_file))["t"]
        except (KeyError, ValueError):
            return  # another node is just writing it, so this node need not wait
        time.sleep(min(max(since + self.hang_every + 0.5 - time.time(), 0.0), self.hang_every + 0.5))

    def end_hang(self) -> None:
        """Dump the stacks of all ranks, then end the ranks and the launcher."""
        self.say("hang", ranks=sorted(self.ranks))
        self.wait_for_other_nodes()
        alive = [rank for rank in self.ranks.values() if rank.alive()]
        for rank in alive:
            ask_flight_recorder(rank)
        for rank in alive:
            write_stack(rank, os.path.join(self.folder, "stacks", "rank-%d.txt" % rank.rank))
        for number in (signal.SIGABRT, signal.SIGKILL):
            for rank in alive:
                if rank.alive():
                    send(rank.pid, number)
            until = time.time() + 15
            while time.time() < until and any(rank.alive() for rank in alive):
                self.note_deaths(set())
                time.sleep(0.2)
        self.note_deaths(set())
        with open(os.path.join(self.options.attempt, "ending"), "a"):
            pass  # so that the SIGTERM is not mistaken for a preemption
        send(self.launcher, signal.SIGTERM)

    def note_places(self) -> None:
        """Count what each rank waits in: a straggler is rarely where the others wait."""
        for rank in self.ranks.values():
            if rank.rank not in self.gone:
                counts = self.places.setdefault(str(rank.rank), {})
                place = rank.place()
                counts[place] = counts.get(place, 0) + 1

    def sample(self) -> None:
        available, whole = memory_mib()
        now, net = time.time(), network_bytes()
        rates = None
        if self.net is not None:
            before, at = self.net
            rates = {
                name: [round((new - old) / (now - at)) for new, old in zip(both, before[name])]
                for name, both in net.items()
                if name in before
            }
        self.net = (net, now)
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


def ask_flight_recorder(rank: Rank) -> None:
    """Make PyTorch dump NCCL's last collectives, through the pipe TORCH_NCCL_DEBUG_INFO_PIPE_FILE."""
    prefix = environment_of(rank.pid).get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if prefix:
        try:
            pipe = os.open("%s%d.pipe" % (prefix, rank.rank), os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"1\n")
            os.close(pipe)
        except OSError:
            pass


def write_stack(rank: Rank, path: str) -> None:
    """Write the stack of a rank from py-spy, else the kernel function that it waits in.

    Only PATH is searched: what the rank calls its virtual environment may be a path inside an image, and outside it a
    folder that anybody can create.
    """
    spy = shutil.which("py-spy")
    text = ""
    if spy:
        try:
            done = subprocess.run(
                [spy, "dump", "--pid", str(rank.pid)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=20,
                check=False,
            )
            text = done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
        except (OSError, subprocess.TimeoutExpired):
            pass
    waits = text_of("/proc/%d/wchan" % rank.pid)
    with open(path, "w") as file:
        file.write(text or "waits in the kernel at: %s\nstate: %s\n" % (waits or "?", (stat_of(rank.pid) or "?")[0]))


def send(pid: int, signal_number: int) -> None:
    """Send a signal to a process that may no longer exist."""
    try:
        os.kill(pid, signal_number)
    except OSError:
        pass


def main() -> None:
    """Parse the options and watch the node."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attempt")
    parser.add_argument("node", type=int)
    # An argument rather than getppid(): if the launcher has ended already, the parent is init.
    parser.add_argument("launcher", type=int, help="the process id of the parent")
    parser.add_argument("--each-process", action="store_true", help="the parent is a rank, beside the others")
    parser.add_argument("--phases", metavar="PIPE", help="the named pipe behind standard input")
    parser.add_argument("--hang-after", type=float, default=0.0, help="seconds of silence and idleness; 0: never")
    parser.add_argument("--busy-after", type=float, default=0.0, help="seconds of silence though busy; 0: never")
    parser.add_argument("--sample-every", type=float, default=30.0, help="seconds between two samples")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        # Warnings and the end of the step signal every process; the watcher exits with the launcher.
        signal.signal(number, signal.SIG_IGN)
    Watch(parser.parse_args()).run()


if __name__ == "__main__":
    main()
