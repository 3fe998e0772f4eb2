"""Look into a running attempt on one of its nodes: become a command as one of its ranks, or print all ranks' stacks.

    python3 -I agent.pyz enter RUN/attempts/001 stacks                    a line of JSON for each rank
    python3 -I agent.pyz enter RUN/attempts/001 RANK PROMPT [COMMAND...]  a shell without a command

The command gets the rank's variables, umask, folder and image: by its namespaces, where the kernel lets this user enter
them (user_namespaces(7)), else by inside.sh of the attempt. Stacks come from py-spy, else from sitecustomize.py.
"""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List

from hpc_launch.agent import job_processes as processes
from hpc_launch.agent.job_processes import text_of
from hpc_launch.agent.ranks import Rank, find_ranks
from hpc_launch.agent.watch_hang import describe

ENTERED = "HPC_LAUNCH_ENTERED"  # marks what is started here, which is no part of the training
NOT_HANDED_ON = "HPC_LAUNCH_GUARD HPC_LAUNCH_PHASE_PIPE HPC_LAUNCH_MLFLOW_RUN HPC_LAUNCH_LOCAL_JOB".split()
PREFIXES = ("", "APPTAINERENV_", "SINGULARITYENV_")
OF_RANK = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT".split()
SHELL = "command -v bash >/dev/null && exec bash --noprofile --norc $0; exec sh $0"
MOST = 64 << 10  # bytes of a stack that are handed on: the last ones, as the main thread is the last one


class Attempt:
    """Its processes here with their variables, and those of them that are ranks. A program without ranks is rank 0."""

    def __init__(self, folder: str) -> None:
        every = {pid: processes.environment_of(pid) for pid in processes.all_pids() if processes.is_own(pid)}
        own = [pid for pid in every if every[pid].get("HPC_LAUNCH_ATTEMPT_DIR", "").endswith("/" + folder)]
        own = [pid for pid in sorted(own, key=lambda pid: processes.start_of(pid) or 0) if ENTERED not in every[pid]]
        self.variables = {pid: every[pid] for pid in own}
        programs = [pid for pid in own if "/hooks/agent.pyz\0" not in text_of("/proc/%d/cmdline" % pid)]
        first = next((pid for pid in programs if not processes.is_starter(pid)), None)
        self.ranks = find_ranks(programs, {}) or ({} if first is None else {0: Rank(first, 0, "")})

    def enter(self, number: int, prompt: str, command: List[str]) -> None:
        """Become the command. Raises OSError."""
        if number not in self.ranks:
            raise OSError(3, "it has no process of rank %d" % number)
        pid = self.ranks[number].pid
        variables = dict(self.variables[pid])
        words = self.into_image(pid, variables)
        for name in (*NOT_HANDED_ON, "TORCHELASTIC_ERROR_FILE"):  # the training's marks and its ways to tell something
            variables.pop(name, None)
        variables.update({ENTERED: "1", "PS1": prompt, "TERM": os.environ.get("TERM", "dumb")})
        mask = re.search(r"^Umask:\s*([0-7]+)", text_of("/proc/%d/status" % pid), re.MULTILINE)
        os.umask(int(mask.group(1), 8) if mask else 0o077)
        with contextlib.suppress(OSError):  # it may be removed
            os.chdir("/proc/%d/cwd" % pid)
        words += command or ["/bin/sh", "-c", SHELL, "-i" if os.isatty(0) else "-s"]
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
        os.execvpe(words[0], words, variables)  # noqa: S606 - no shell has to read the words

    def into_image(self, pid: int, variables: Dict[str, str]) -> List[str]:
        """The words that start a command in its image. Changes the variables to those outside a new container."""
        if shares(pid, "mnt"):
            return []
        nsenter, own_user = shutil.which("nsenter"), shares(pid, "user")
        if nsenter and (not own_user or os.geteuid() == 0):
            user = [] if own_user else ["--user", "--preserve-credentials"]
            return [nsenter, "--target", str(pid), *user, "--mount", "--root", "--wd"]
        ranked = {name: variables[name] for name in OF_RANK if name in variables}
        outside = [one for other, one in self.variables.items() if shares(other, "mnt")]
        latest = max([*outside, {}], key=len)  # it has the most variables
        variables.clear()
        variables.update(latest)
        variables.update((prefix + name, ranked[name]) for name in ranked for prefix in PREFIXES)
        return ["bash", os.path.join(latest.get("HPC_LAUNCH_ATTEMPT_DIR", ""), "inside.sh")]


def shares(pid: int, kind: str) -> bool:
    """Whether a process is in this one's namespace of a kind; False if that cannot be seen."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/%d/ns/%s" % (pid, kind)) == os.readlink("/proc/self/ns/" + kind)
    return False


def stack_of(rank: Rank, path: str) -> str:
    """Its state, and its stack if that can be had, as watch_hang.py writes them. `path` is searched for py-spy."""
    state, stack = describe(rank, path if shares(rank.pid, "mnt") else "")
    for file in glob.glob("/proc/%d/fd/*" % rank.pid) if not stack else ():
        with contextlib.suppress(OSError):
            if os.readlink(file).startswith("/memfd:hpc-launch-stacks"):
                stack = answer_of(rank.pid, file)
    return state + stack[-MOST:]


def answer_of(pid: int, path: str) -> str:
    """What a process writes into its file when it is asked; '' if nothing within three seconds. Raises OSError."""
    with open(path, "rb") as file:
        begin = size = file.seek(0, os.SEEK_END)
        processes.send(pid, signal.SIGURG)
        for _ in range(30):
            time.sleep(0.1)
            before, size = size, file.seek(0, os.SEEK_END)
            if begin < size == before:  # it is complete
                break
        file.seek(max(begin, size - MOST))
        return file.read().decode("utf-8", "replace")


def main(words: List[str]) -> int:
    """Do it."""
    attempt, host = Attempt(words[0]), os.uname().nodename
    if words[1] != "stacks":
        try:
            attempt.enter(int(words[1]), words[2], words[3:])
        except OSError as error:
            sys.stderr.write("error: %s: %s %s\n" % (host, error.strerror, os.fsdecode(error.filename or "")))
        return 127
    with ThreadPoolExecutor(16) as pool:
        ranks = sorted(attempt.ranks.values(), key=lambda rank: rank.rank)
        texts = pool.map(lambda rank: stack_of(rank, attempt.variables[rank.pid].get("PATH", "")), ranks)
        for rank, text in zip(ranks, texts):
            print(json.dumps({"rank": rank.rank, "host": host, "text": text}))
    return 0
