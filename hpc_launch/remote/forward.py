"""Run a verb on a cluster, and go on where the connection drops: nothing is submitted twice, no line is lost.

On the login node, `once` runs what must happen once. The first call with a token runs the verb in a session of its own,
which a lost connection does not end; each further call waits for that one, and prints what it printed. If its machine
failed meanwhile, nobody knows what it has done: it is not repeated. Later calls remove what an old one has left.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpc_launch.agent.fan_out import SSH_FAILED
from hpc_launch.base.errors import Unreachable, UserError
from hpc_launch.base.files import make_private, state_folder, write_atomic, write_output
from hpc_launch.base.installed import module_command
from hpc_launch.remote import clusters
from hpc_launch.remote.clusters import Cluster, ConnectionLost, KnownRuns
from hpc_launch.remote.install import copy_code
from hpc_launch.service.listener import Listener

T = TypeVar("T")

TRIES = 6
"""How often a connection is made that is lost each time; the pauses between double from one second."""
ONCE = frozenset({"submit", "resubmit", "cancel"})
"""Verbs that must happen once."""
PROGRAM = 'python -I -c "from hpc_launch.remote.forward import once_here; once_here()"'
"""It fails where another release is installed; `python -m` would do nothing there and succeed."""
ASKED_S = 86_400.0
"""For how long a client may ask with one token. It may sleep for days between two calls."""
KEPT_S = 14 * ASKED_S
"""For how long the answer is kept. It must be longer: without the answer, a call with its token repeats the verb."""
MOST_RUNS = 200
"""Of the newest runs of a cluster, how many are known by name."""
FOLLOWING = frozenset({"watch", "logs"})
"""Verbs that go on after a lost connection."""


@dataclass(frozen=True)
class Call:
    """A verb as it was typed, without `--on`."""

    words: tuple[str, ...]
    """The verb and its arguments."""
    job: str | None = None
    """The argument that names a job file."""
    site: bool = True
    """Whether the verb takes a site and none is named."""
    output: Path | None = None
    """The file of `-o`, which is written here."""
    made: float = field(default_factory=time.time)
    """When it was typed, in seconds since the epoch."""

    @property
    def verb(self) -> str:
        return self.words[0]


def run_on(name: str, call: Call, listener: Listener, show: Callable[[dict[str, Any]], None]) -> int:
    """Run a verb on the cluster `name` and return its exit code. The listener hears of copies and lost connections;
    `show` prints a line of output of `logs`. Raises UsageError, Unreachable."""
    cluster, words, folder = clusters.find(name), list(call.words), ""
    if call.job is not None:
        path, slash, stage = call.job, "", ""
        while not os.path.exists(path) and "/" in path:  # JOB/STAGE
            path, slash, stage = path.rpartition("/")
        folder = _connected(cluster, listener, partial(copy_code, cluster, Path(path), listener))
        words[words.index(call.job, 1)] = f"{os.path.basename(path)}{slash}{stage}"
    if call.site and cluster.site is not None:
        words.append(f"--site={cluster.site}")
    if call.verb in ONCE:
        return _once(cluster, words, folder, listener, call.made + ASKED_S)
    if call.verb == "logs":
        return _logs(cluster, words, listener, show)
    terminal = call.output is None and sys.stdin.isatty() and sys.stdout.isatty()
    command = [*cluster.ssh(terminal=terminal), cluster.command(words, folder)]
    if call.output is not None:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
        if done.returncode == 0:
            write_output(call.output, done.stdout.decode("utf-8", "replace"))
        return _code(cluster, done.returncode)
    given = None if terminal else subprocess.DEVNULL
    tries = TRIES if call.verb in FOLLOWING else 1
    ssh = partial(subprocess.run, command, stdin=given, check=False)
    return _connected(cluster, listener, lambda: _code(cluster, ssh().returncode), tries)


def _code(cluster: Cluster, code: int) -> int:
    if code == SSH_FAILED:
        raise ConnectionLost(f"{cluster.host} does not answer over ssh", f"`ssh {cluster.host}` must work")
    return code


def _connected(cluster: Cluster, listener: Listener, run: Callable[[], T], tries: int = TRIES) -> T:
    """Run something again while the connection is lost, and return its result. Raises Unreachable."""
    for number in range(tries - 1):
        try:
            return run()
        except ConnectionLost:
            listener.say(f"the connection to {cluster.name} was lost; connecting again")
            time.sleep(2**number)
    return run()


def _once(cluster: Cluster, words: list[str], folder: str, listener: Listener, until: float) -> int:
    """Run a verb once, however often the connection drops `until` then; with `--wait`, follow its run afterwards."""
    wait = "--wait" in words
    words = [one for one in words if one != "--wait"]
    token = secrets.token_hex(8)
    line = cluster.command([token, *words], folder, PROGRAM)
    text = ""

    def ask() -> int:
        nonlocal text
        if time.time() > until:  # this machine slept; the cluster may not know this request any more
            hint = f"`hpc-launch list --on {cluster.name}` shows what was done"
            raise Unreachable(f"{words[0]} was typed more than a day ago, and is not sent again", hint)
        done = subprocess.run([*cluster.ssh(), line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
        text = done.stdout.decode("utf-8", "replace")
        return _code(cluster, done.returncode)

    code = _connected(cluster, listener, ask)
    sys.stdout.write(text)
    sys.stdout.flush()
    run = _run_of(text) if code == 0 and words[0] != "cancel" else None
    if run is None:
        return code
    known = clusters.known_runs(cluster.name)
    clusters.keep_runs(cluster.name, KnownRuns(known.as_of, ({"run": run, "state": "SUBMITTED"}, *known.runs)))
    return run_on(cluster.name, Call(("watch", run), site=False), listener, lambda _: None) if wait else 0


def once_here() -> None:
    """Run the verb that this process was started with: TOKEN VERB ..."""
    sys.exit(once(state_folder() / "requests" / sys.argv[1], sys.argv[2:]))


def once(folder: Path, words: list[str]) -> int:
    """On the login node: run `hpc-launch WORDS` unless that was done, and print its output. Returns its exit code."""
    make_private(folder)
    keeper = os.fork()
    if keeper == 0:
        os.setsid()
        _keep(folder, words)
        os._exit(0)
    os.waitpid(keeper, 0)
    try:
        code = int((folder / "code").read_text())
    except (OSError, ValueError):
        message = f"error: {' '.join(words[:1])} was interrupted on this machine, and is not repeated\n"
        sys.stderr.write(f"{message}hint: hpc-launch list shows what it has done\n")
        return Unreachable.exit_code
    sys.stderr.write((folder / "err").read_text("utf-8", "replace"))
    sys.stdout.write((folder / "out").read_text("utf-8", "replace"))
    return code


def _keep(folder: Path, words: list[str]) -> None:
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            os.close(os.open(folder / "begun", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
        with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            command = [*module_command("hpc_launch"), *words]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False)
        write_atomic(folder / "code", str(done.returncode))
    oldest = time.time() - KEPT_S
    for request in folder.parent.iterdir():
        with suppress(OSError):  # another call removes it
            if request.lstat().st_mtime < oldest:
                shutil.rmtree(request)


def _run_of(text: str) -> str | None:
    """The name of the run in what `submit` printed."""
    try:
        return str(json.loads(text)["run"])
    except (ValueError, KeyError, TypeError):
        return next(iter(text.split()), None)


def _logs(cluster: Cluster, words: list[str], listener: Listener, show: Callable[[dict[str, Any]], None]) -> int:
    """Print the output of a run. After a lost connection, go on with the line after the last one."""
    seen = Counter[tuple[int, str]]()
    """Lines shown, by attempt and file."""

    def ask() -> int:
        again = [f"--first={max(seen)[0]}"] if seen else []
        told = Counter[tuple[int, str]]()
        command = [*cluster.ssh(), cluster.command([*words, "--json", *again])]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            for line in process.stdout or ():
                if not line.endswith(b"\n"):
                    break  # it was cut
                item = json.loads(line)
                told[place := (item["attempt"], item["file"])] += 1
                if told[place] > seen[place]:
                    seen[place] += 1
                    show(item)
        return _code(cluster, process.returncode)

    return _connected(cluster, listener, ask)


def cluster_of(run: str) -> str | None:
    """The cluster that has a run, by what each has answered; None where none or several have."""
    found = {
        name
        for name in clusters.names()
        for one in clusters.known_runs(name).runs
        if str(one.get("run", "")).startswith(run)
    }
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True)
class RunsThere:
    """The runs of a cluster as it knows them, or knew them last."""

    cluster: str
    answer: KnownRuns
    problem: str | None = None
    """Why it does not answer now."""


def list_all(words: Sequence[str]) -> list[RunsThere]:
    """What `list` says on each cluster, asked at once; none asks for a password. `words`: the options of `list`."""
    names = clusters.names()
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        return list(pool.map(lambda name: _listed(name, words), names))


def _listed(name: str, words: Sequence[str]) -> RunsThere:
    try:
        cluster = clusters.find(name)
        line = cluster.command(["list", "--json", *(words or [f"-n{MOST_RUNS}"])])
        done = subprocess.run(
            [*cluster.ssh(ask=False), line], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
        _code(cluster, done.returncode)
        answer = KnownRuns(time.time(), tuple(json.loads(done.stdout)))
    except (UserError, OSError, subprocess.SubprocessError, ValueError) as error:
        return RunsThere(name, clusters.known_runs(name), str(error).partition("\n")[0])
    if not words:
        clusters.keep_runs(name, answer)
    return RunsThere(name, answer)
