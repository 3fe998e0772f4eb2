"""The processes of a job on a node, by /proc: what belongs to an attempt; warn or end them.

python3 -I agent.pyz job_processes warn GUARD MARK SIGNAL  signal the ranks of a guard (parts/guard.sh)
python3 -I agent.pyz job_processes end ATTEMPT             end all of an attempt in this job of Slurm
python3 -I agent.pyz job_processes end ATTEMPT NODE        end what a node of a job without Slurm left behind
"""

import contextlib
import ctypes
import glob
import os
import signal
import time
from typing import Callable, Dict, List, Optional, Sequence, Set

from hpc_launch.agent import say

INITIAL_PIDS = 0xEFFFFFFC  # the inode of the machine's own pid namespace (linux/proc_ns.h)
PIDFD_OPEN = 434  # the same number on every architecture (pidfd_open(2))
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
STARTERS = {
    *("bash", "sh", "dash", "ksh", "zsh", "busybox", "sed", "tee", "cat", "env", "time", "numactl"),
    *("apptainer", "singularity", "ch-run", "shifter", "crun", "runc"),
}
"""Names of shells and of what starts a container, with HELPERS as the first letters of more."""
HELPERS = ("starter", "podman", "conmon")
KILL_S = 3.0  # between SIGTERM and SIGKILL
DEAD_S = 5.0  # for killed processes to be gone: one that hangs in the kernel cannot be killed


def text_of(path: str, limit: int = 1 << 16) -> str:
    """The first `limit` bytes of a file (-1: all of it); '' if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def pid_space() -> str:
    """This boot and this pid namespace (pid_namespaces(7)), in which a process id is unique; '' if they are hidden."""
    try:
        return "%s:%d" % (text_of("/proc/sys/kernel/random/boot_id").strip(), os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def machine_id() -> str:
    """The machine (machine-id(5)), by which a reboot is told from another machine of the same name. '' in a container,
    which may have a copy of its machine's."""
    try:
        return text_of("/etc/machine-id").strip() if os.stat("/proc/self/ns/pid").st_ino == INITIAL_PIDS else ""
    except OSError:
        return ""


def stat_of(pid: int) -> List[str]:
    """The fields of /proc/PID/stat after the name (proc(5)): [0] is the state. Empty if the process is gone."""
    return text_of("/proc/%d/stat" % pid).rpartition(")")[2].split()


def start_of(pid: int) -> Optional[int]:
    """When a process started, in clock ticks since boot; None if it is gone or a zombie. Process ids are reused: both
    together identify a process."""
    fields = stat_of(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def prctl(option: int, value: int) -> None:
    """prctl(2). Without it a job still runs, but a stray process may survive its end."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def all_pids() -> List[int]:
    """All processes of the node."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def below(pid: int) -> List[int]:
    """All living descendants of `pid`, parents first. Some may be missing while others end (proc(5), children)."""
    descendants, pending = [], [pid]  # type: List[int], List[int]
    while pending:
        lists = glob.glob("/proc/%d/task/*/children" % pending.pop(0))
        children = [int(word) for path in lists for word in text_of(path).split()]
        children = [child for child in children if start_of(child) is not None]
        descendants += children
        pending += children
    return descendants


def all_below(pid: int, without: Callable[[int], bool] = lambda _: False) -> List[int]:
    """The same, without a gap, from all processes; not those that `without` names, and what is below them."""
    children = {}  # type: Dict[int, List[int]]
    for one in all_pids():
        fields = stat_of(one)
        if len(fields) > 1 and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(one)
    descendants, pending = [], [pid]  # type: List[int], List[int]
    while pending:
        found = [child for child in children.get(pending.pop(0), ()) if not without(child)]
        descendants += found
        pending += found
    return descendants


def environ_of(pid: int) -> List[bytes]:
    """The initial environment of a process, as `NAME=value`. Empty if it is not readable, or written over."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return list(filter(None, file.read().split(b"\0")))
    except OSError:
        return []


def environment_of(pid: int) -> Dict[str, str]:
    """The same by name."""
    pairs = (os.fsdecode(item).partition("=") for item in environ_of(pid))
    return {name: value for name, _, value in pairs}


def belonging(variables: Sequence[str], sessions: Set[str], parent: int = -1) -> List[int]:
    """The other processes that began with all of these variables, `NAME=value`, whatever their parent. Adds their
    sessions to `sessions`.

    A process that sets its title may write over its environment (setproctitle): then it belongs to them if it is in one
    of the sessions, which may have lost their first process, or a child of one of them or of `parent`.
    """
    wanted = {os.fsencode(one) for one in variables}
    found = set()  # type: Set[int]
    untitled = {}  # type: Dict[int, List[str]]
    for pid in all_pids():
        fields = stat_of(pid)
        if len(fields) < 4 or fields[0] in "ZX" or pid == os.getpid():
            continue
        environment = environ_of(pid)
        if wanted.issubset(environment):
            found.add(pid)
            sessions.add(fields[3])
        elif not environment:
            untitled[pid] = fields
    while True:
        more = [pid for pid, fields in untitled.items() if fields[3] in sessions or int(fields[1]) in {parent, *found}]
        if not more:
            return sorted(found)
        found.update(more)
        sessions.update(untitled.pop(pid)[3] for pid in more)


def open_pidfd(pid: int) -> Optional[int]:
    """A descriptor that becomes readable when the process ends; None on kernels before 5.3."""
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        descriptor = ctypes.CDLL(None).syscall(PIDFD_OPEN, pid, 0)
    except (OSError, AttributeError):
        return None
    return descriptor if descriptor >= 0 else None


def send(pid: int, signal_number: int) -> None:
    """Send a signal to a process, or with `-pid` to a group of them, that may no longer exist."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal_number)


def is_starter(pid: int) -> bool:
    """Whether it is a shell or starts a container, by its name (proc(5), comm) or its program."""
    try:
        names = text_of("/proc/%d/comm" % pid).strip(), os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return True
    return any(name in STARTERS or name.startswith(HELPERS) for name in names)


def is_agent(pid: int) -> bool:
    """Whether it is a program of the agent, such as the watcher, which is not part of the training."""
    archive = os.environ.get("HPC_LAUNCH_RUN_DIR", "") + "/hooks/agent.pyz"
    return archive in text_of("/proc/%d/cmdline" % pid).split("\0")


def ranks_of(guard: int, mark: str) -> List[int]:
    """The topmost process of each rank that began with a guard's mark, or wrote over its environment for a title."""
    marked = belonging(["HPC_LAUNCH_GUARD=" + mark], set(), guard)
    own = {pid: stat_of(pid)[1:2] for pid in marked if not is_agent(pid)}
    above = {pid: int(fields[0]) for pid, fields in own.items() if fields}
    variables = {pid: environ_of(pid) for pid in above}
    ranks = {
        pid
        for pid in above
        if not is_starter(pid) and (not variables[pid] or any(one.startswith(b"RANK=") for one in variables[pid]))
    }

    def is_below_a_rank(pid: int) -> bool:
        seen = {pid}
        while above.get(pid) in above and above[pid] not in seen:
            pid = above[pid]
            seen.add(pid)
            if pid in ranks:
                return True
        return False

    return sorted(pid for pid in ranks if not is_below_a_rank(pid))


def warn(guard: int, mark: str, name: str) -> int:
    """Signal the ranks; 1 if there is none yet."""
    pids = ranks_of(guard, mark)
    for pid in pids:
        send(pid, getattr(signal, "SIG" + name))
    if pids:
        say("sent SIG%s to the training: processes %s" % (name, " ".join(map(str, pids))))
    return 0 if pids else 1


def left_of(attempt: str, job: str) -> List[int]:
    """The processes of an attempt in this job of Slurm, if it is one: another job that its training submitted names the
    attempt, too."""
    own = ["SLURM_JOB_ID=" + job] if job else []
    found = set(belonging(["HPC_LAUNCH_ATTEMPT_DIR=" + attempt, *own], set()))
    for pid in all_pids() if job else ():
        # A process that sets its title may write over its environment; a dead one has none.
        titled = is_own(pid) and not environ_of(pid) and text_of("/proc/%d/cmdline" % pid).strip("\0")
        if titled and "/job_%s/" % job in text_of("/proc/%d/cgroup" % pid) and not is_of_others(pid, attempt):
            found.add(pid)
    return sorted(filter(is_own, found))


def is_of_others(pid: int, attempt: str) -> bool:
    """Whether the nearest process above it that names a folder names that of another role, which lives on."""
    folder = ""
    while pid > 1 and not folder:
        folder = environment_of(pid).get("HPC_LAUNCH_ATTEMPT_DIR", "")
        pid = int((stat_of(pid)[1:2] or "0")[0])
    return bool(folder) and not (folder + "/").startswith(attempt + "/")


def is_own(pid: int) -> bool:
    """Whether a process is this user's."""
    try:
        return os.stat("/proc/%d" % pid).st_uid == os.geteuid()
    except OSError:
        return False


def end_all(
    remaining: Callable[[], List[int]], reap: Callable[[], None] = lambda: None, kill_s: float = KILL_S
) -> List[int]:
    """Send SIGTERM, wait `kill_s`, then SIGKILL until none is left. Returns those that are."""
    for pid in remaining() if kill_s else ():
        send(pid, signal.SIGTERM)
    begin = time.monotonic()
    while True:
        reap()
        left = [pid for pid in remaining() if start_of(pid) is not None]
        if not left or time.monotonic() - begin > kill_s + DEAD_S:
            return left
        if time.monotonic() - begin >= kill_s:
            for pid in left:
                send(pid, signal.SIGKILL)
        time.sleep(0.05)


def end(attempt: str, node: str) -> None:
    """End what is left of an attempt; on Slurm, print the step's number, the node, and `none` or what is still left."""
    if node:
        sessions = set()  # type: Set[str]
        variables = ["HPC_LAUNCH_ATTEMPT_DIR=" + attempt, "HPC_LAUNCH_NODE=" + node]
        end_all(lambda: belonging(variables, sessions))
        return
    left = end_all(lambda: left_of(attempt, os.environ.get("SLURM_JOB_ID", "")), kill_s=0)
    words = " ".join(map(str, left)) or "none"
    print("%s %s %s" % (os.environ.get("SLURM_STEP_ID", ""), os.uname().nodename, words))


def main(words: List[str]) -> int:
    """Do what the first word says."""
    if words[0] == "warn":
        return warn(int(words[1]), words[2], words[3])
    end(words[1], "".join(words[2:]))
    return 0
