"""Detect a hang, dump the ranks' stacks and end the ranks; and look at the node's GPUs. For watch.py.

Without py-spy, SIGABRT makes Python's faulthandler (PYTHONFAULTHANDLER=1) print all threads' stacks to the log before
the process ends. Usage, NVLinks and faults of GPUs are those that nvidia-smi or the AMD driver reports.
"""

import argparse
import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

from hpc_launch.agent.describe_host import rows_of
from hpc_launch.agent.job_processes import below, environment_of, send, stat_of, text_of
from hpc_launch.agent.ranks import TICKS, Rank

NVIDIA_FIELDS = (
    "index,utilization.gpu,memory.used,temperature.gpu,power.draw,clocks.sm,clocks_throttle_reasons.active,"
    "ecc.errors.uncorrected.volatile.total"
)
SMI_S = 10.0
"""Time limit of one call of nvidia-smi."""
SMI_LOST = 15
"""nvidia-smi's exit code if a GPU has fallen off the bus (man nvidia-smi)."""
NVIDIA_KEYS = ("index", "util", "mem_mib", "temp_c", "power_w", "sm_mhz", "throttle", "ecc")


def smi(*words: str, errors: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    """Start nvidia-smi. Raises OSError."""
    return subprocess.Popen(["nvidia-smi", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)


def printed(process: "subprocess.Popen[bytes]") -> str:
    """What it has printed."""
    return ((process.stdout.read() if process.stdout else b"") or b"").decode("ascii", "replace")


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
            every = str(int(max(every_s, 5)))
            with contextlib.suppress(OSError):
                self.process = smi("--query-gpu=" + NVIDIA_FIELDS, "--format=csv,noheader,nounits", "-l", every)
                if self.process.stdout is not None:
                    os.set_blocking(self.process.stdout.fileno(), False)
                self.asked_links = smi("nvlink", "--status")

    def links(self) -> Optional[int]:
        """The number of active NVLinks on the node; None if unknown. Queried once, at the start."""
        asked = self.asked_links
        if asked is not None and asked.poll() is not None:
            self.asked_links = None
            if asked.returncode == 0:
                self.links_up = sum(" GB/s" in line for line in printed(asked).splitlines())
        return self.links_up

    def sample(self) -> List[Dict[str, Any]]:
        """One object per GPU; empty without GPUs."""
        if self.process is not None:
            text = self.rest + printed(self.process)
            self.rest = text.rpartition("\n")[2]
            for values in rows_of(text, len(NVIDIA_KEYS)):
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
        fields = "--query-gpu=index,ecc.errors.uncorrected.volatile.total"
        try:
            asked = smi(fields, "--format=csv,noheader", errors=subprocess.STDOUT)
            text = asked.communicate(timeout=SMI_S)[0].decode("ascii", "replace")
        except (OSError, subprocess.TimeoutExpired):
            return []
        if asked.returncode == SMI_LOST:
            return ["nvidia-smi: " + (text.strip() or "a GPU is lost")[:200]]
        found = []
        for index, count in rows_of(text, 2):
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
        with contextlib.suppress(ValueError):
            return kind(word)
    return None if word.startswith("[") or word in ("", "N/A") else word


HANG_LOOK_S = 15.0
LATE_S = 5.0
"""A check that is later than this and twice the usual time: the job was suspended, and so was this process."""
NEAR_S = 2.0
"""Seconds between two checks shortly before the limit. All nodes see the same silence: none waits long for another."""
POLLS_S = 1.0
"""Seconds in which a rank that polls wakes up at least once."""
IDLE_SHARE = 0.02
"""CPU cores per rank below which a rank is idle. A rank that waits inside NCCL is busy: see --busy-after."""


class HangDetector:
    """Whether the ranks of this node hang, from one check to the next."""

    def __init__(self, options: argparse.Namespace, say: Callable[..., None], note_deaths: Callable[..., None]) -> None:
        self.options, self.say, self.note_deaths = options, say, note_deaths
        self.folder = os.path.join(options.attempt, "agent")
        self.logs = os.path.join(options.attempt, "logs")
        self.output_mark = os.path.join(self.folder, "last-output")
        self.hang_file = os.path.join(self.folder, "hang.json")
        limits = [limit for limit in (options.hang_after, options.busy_after) if limit]
        self.usual_s = self.every_s = min([HANG_LOOK_S] + [max(limit / 4, 1) for limit in limits])
        self.log_size, self.looked = -1, time.time()
        self.cpu_last: Dict[int, float] = {}
        self.cpu_at = time.time()
        self.idle_since: Optional[float] = None
        self.awake_since = 0.0
        self.known: Dict[int, Rank] = {}

    def output(self, ranks: Iterable[int]) -> Tuple[int, float]:
        """Total size and last change of this node's logs, by name: listing the folder would list those of all nodes."""
        node = "node-%d" % self.options.node
        size, changed = 0, 0.0
        for name in [node + ".log"] + ["%s.rank-%d.log" % (node, rank) for rank in ranks]:
            try:
                status = os.stat(os.path.join(self.logs, name))
            except OSError:
                continue
            size, changed = size + status.st_size, max(changed, status.st_mtime)
        return size, changed

    def note_output(self, ranks: Iterable[int]) -> None:
        """Let all nodes know that a log of this one has grown."""
        (size, changed), now = self.output(ranks), time.time()
        if size != self.log_size:
            self.log_size = size
            with open(self.output_mark, "a"):
                # When it grew rather than when that was seen, if its time can be right.
                grew = changed if self.looked <= changed <= now else now
                os.utime(self.output_mark, (grew, grew))
        self.looked = now

    def check(self, ranks: Dict[int, Rank], gone: Set[int], gpus: Gpus) -> None:
        """End the ranks if they hang: no output on any node, and no activity here. Busy ranks (spinning in NCCL) get
        more time."""
        now = time.time()
        if now - self.cpu_at > 2 * self.usual_s + LATE_S or ranks != self.known:
            self.awake_since, self.idle_since = now, None  # a silence from before they began does not count
        self.known = dict(ranks)
        self.note_output(ranks)
        cpu = {rank.rank: rank.cpu_s() for rank in ranks.values() if rank.rank not in gone}
        if cpu and getattr(self.options, "program", False):  # its processes need not be known as ranks
            others = set(below(self.options.launcher)) - {rank.pid for rank in ranks.values()} - {os.getpid()}
            cpu.update((-pid, sum(map(int, stat_of(pid)[11:15])) / TICKS) for pid in others)
        spent = sum(max(cpu[number] - self.cpu_last.get(number, 0.0), 0.0) for number in cpu)
        share = spent / max(now - self.cpu_at, 0.1) / max(len(ranks) - len(gone & set(ranks)), 1)
        self.cpu_last, self.cpu_at = cpu, now
        gpu_busy = any((gpu.get("util") or 0) > 1 for gpu in gpus.sample())
        if share >= IDLE_SHARE or gpu_busy:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now
        if os.path.exists(self.hang_file):
            self.end(ranks)
            return
        silent = now - max(os.stat(self.output_mark).st_mtime, self.awake_since)
        idle = self.idle_since is not None and now - self.idle_since >= self.options.hang_after * 0.5
        limit = self.options.hang_after if idle else self.options.busy_after
        left = [one - silent for one in (self.options.hang_after, self.options.busy_after) if one]
        near = any(-self.usual_s < one < 2 * self.usual_s for one in left)
        self.every_s = min(self.usual_s, NEAR_S) if near else self.usual_s
        if cpu and limit and silent >= limit:
            report = {"t": now, "node": self.options.node, "host": os.uname().nodename}
            report.update(silent_s=round(silent), idle=idle)
            with contextlib.suppress(FileExistsError), open(self.hang_file, "x") as file:
                file.write(json.dumps(report) + "\n")
            self.end(ranks)

    def wait_for_other_nodes(self) -> None:
        """Wait until the watchers of all nodes have seen hang.json. Killing a rank makes the ranks that wait for it
        fail, and their stacks, which show who is missing, would be lost."""
        try:
            since = json.loads(text_of(self.hang_file))["t"]
        except (KeyError, ValueError):
            return  # another node is just writing it, so this node need not wait
        time.sleep(min(max(since + self.every_s + 0.5 - time.time(), 0.0), self.every_s + 0.5))

    def end(self, ranks: Dict[int, Rank]) -> None:
        """Dump the stacks of all ranks, then end the ranks and the launcher."""
        self.say("hang", ranks=sorted(ranks))
        woken = {rank.rank: wakes(rank.pid) for rank in ranks.values() if rank.alive()}
        time.sleep(POLLS_S)
        self.wait_for_other_nodes()
        alive = [rank for rank in ranks.values() if rank.alive()]
        for rank in alive:
            ask_flight_recorder(rank)
        for rank in alive:
            polls = wakes(rank.pid) > woken[rank.rank]
            write_stack(rank, os.path.join(self.folder, "stacks", "rank-%d.txt" % rank.rank), polls)
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
        send(self.options.launcher, signal.SIGTERM)


def ask_flight_recorder(rank: Rank) -> None:
    """Make PyTorch dump NCCL's last collectives, through the pipe TORCH_NCCL_DEBUG_INFO_PIPE_FILE."""
    prefix = environment_of(rank.pid).get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if prefix:
        with contextlib.suppress(OSError):
            pipe = os.open("%s%d.pipe" % (prefix, rank.rank), os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"1\n")
            os.close(pipe)


def wakes(pid: int) -> int:
    """How often the main thread of a process has waited for something (proc(5), status)."""
    lines = text_of("/proc/%d/status" % pid).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))


def write_stack(rank: Rank, path: str, polls: bool = False) -> None:
    """Write what `describe` says of a rank, and whether it polls: it sleeps and wakes up by itself."""
    state, stack = describe(rank)
    with open(path, "w") as file:
        file.write(state + ("polls: yes\n" if polls else "") + stack)


def describe(rank: Rank, path: Optional[str] = None) -> Tuple[str, str]:
    """The state of a rank with the kernel function that it waits in, and its stack from py-spy; '' without.

    Only PATH, or `path`, is searched: what the rank calls its virtual environment may be a path inside an image, and
    outside it a folder that anybody can create.
    """
    spy = shutil.which("py-spy", path=path)
    text = ""
    if spy:
        words = [spy, "dump", "--pid", str(rank.pid)]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False)
            text = done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
    return "waits in the kernel at: %s\nstate: %s\n" % (rank.place(), (stat_of(rank.pid) or "?")[0]), text
