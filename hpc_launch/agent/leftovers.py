"""The processes of an attempt on a node: warn its ranks, or end what is left of it.

    python3 -I agent.pyz leftovers warn GUARD SIGNAL    signal the ranks below a guard (slurm_templates/parts/guard.sh)
    python3 -I agent.pyz leftovers end ATTEMPT_FOLDER   end all processes that name the attempt, and say what is left

Standard library of Python 3.6 or later.
"""

import os
import signal
import sys
import time
from typing import Dict, List, Set

from hpc_launch.agent.watch_processes import STARTERS, belonging, environ_of, send, stat_of, text_of

TRIES, TRY_S = 20, 0.5
HELPERS = ("podman", "conmon", "starter")


def ranks_below(guard: int, mark: str) -> List[int]:
    """The topmost process of each rank that is neither a shell nor a helper of a container.

    Those of this guard began with its mark in their environment, or wrote over it as they set a title.
    """
    above: Dict[int, int] = {}
    ranks: Set[int] = set()
    titled: Set[int] = set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        fields, variables = stat_of(pid), environ_of(pid).split(b"\0")
        if len(fields) < 2 or fields[0] in "ZX" or not is_own(pid):
            continue
        untitled = any(variables)
        if (untitled and os.fsencode("HPC_LAUNCH_GUARD=" + mark) not in variables) or is_agent(pid):
            continue
        above[pid] = int(fields[1])
        is_rank = any(one.startswith(b"RANK=") for one in variables)
        if (untitled and not is_rank) or is_starter(pid):
            continue
        (ranks if untitled else titled).add(pid)
    for pid in titled:
        parent = above[pid]
        if parent == guard or (parent in above and parent not in titled):
            ranks.add(pid)
    return sorted(pid for pid in ranks if not any(one in ranks for one in parents(pid, above)))


def parents(pid: int, above: Dict[int, int]) -> List[int]:
    """The processes above one, of those that are known."""
    found: List[int] = []
    while above.get(pid, pid) in above and above[pid] not in found:
        pid = above[pid]
        found.append(pid)
    return found


def is_own(pid: int) -> bool:
    """Whether a process is this user's."""
    try:
        return os.stat("/proc/%d" % pid).st_uid == os.geteuid()
    except OSError:
        return False


def is_agent(pid: int) -> bool:
    """Whether it is a program of the agent, such as the watcher, which is not part of the training."""
    archive = os.environ.get("HPC_LAUNCH_RUN_DIR", "") + "/hooks/agent.pyz"
    return archive in text_of("/proc/%d/cmdline" % pid).split("\0")


def is_starter(pid: int) -> bool:
    """Whether it is a shell or starts a container."""
    try:
        name = os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return True
    return name in STARTERS or name.startswith(HELPERS)


def warn(guard: int, mark: str, name: str) -> int:
    """Signal the ranks; 1 if there is none yet."""
    pids = ranks_below(guard, mark)
    for pid in pids:
        send(pid, getattr(signal, "SIG" + name))
    if pids:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        words = " ".join(map(str, pids))
        print("[hpc-launch %s] sent SIG%s to the training: processes %s" % (now, name, words), file=sys.stderr)
    return 0 if pids else 1


def left_of(attempt: str, job: str) -> List[int]:
    """The processes of an attempt in this job: another job that its training submitted names the attempt, too."""
    belong = belonging(["HPC_LAUNCH_ATTEMPT_DIR=" + attempt, "SLURM_JOB_ID=" + job], set())
    found = set(filter(is_own, belong))
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        # A process that sets its title may write over its environment; a dead one has none.
        titled = is_own(pid) and not environ_of(pid).strip(b"\0") and text_of("/proc/%d/cmdline" % pid).strip("\0")
        if titled and "/job_%s/" % job in text_of("/proc/%d/cgroup" % pid):
            found.add(pid)
    return sorted(found)


def end(attempt: str) -> int:
    """End them all. Prints the step's number, the node, and `none` or what is left."""
    left: List[int] = []
    for _ in range(TRIES):
        left = left_of(attempt, os.environ.get("SLURM_JOB_ID", ""))
        if not left:
            break
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(TRY_S)
    words = " ".join(map(str, left)) or "none"
    print("%s %s %s" % (os.environ.get("SLURM_STEP_ID", ""), os.uname().nodename, words))
    return 0


def main(words: List[str]) -> int:
    """Do what the first word says."""
    return end(words[1]) if words[0] == "end" else warn(int(words[1]), words[2], words[3])
