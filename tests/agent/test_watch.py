"""The watcher of a node, beside a launcher with two ranks: real processes that die, hang and end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_launch.agent import job_processes as processes
from hpc_launch.agent import watch_hang as hangs
from hpc_launch.agent.ranks import Rank
from hpc_launch.agent.watch_node import OomKills
from tests.agent.program import program
from tests.busy import patience
from tests.cluster.faults import wait_until

LAUNCHER = textwrap.dedent(
    """
    import os, subprocess, sys, time
    log, ranks = open(sys.argv[1], "a"), []
    time.sleep(1.5 * (sys.argv[-1] == "late"))
    for rank in (0, 1):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
        tagged = ["bash", "-c", 'exec "$@" > >(sed -u "s/^/[rank$RANK]: /" >>"$0") 2>&1', sys.argv[1], *sys.argv[2:]]
        ranks.append(subprocess.Popen(tagged, env=env))
    while any(rank.poll() is None for rank in ranks):
        time.sleep(1 if sys.argv[-1] in ("exit", "late") else 0.1)
    time.sleep(0.3)
    """
)
"""Looks at its ranks ten times a second, as torchrun does, or leaves a busy machine time to see how they ended."""

WORK = """\
import time
def work(seconds):
    end = time.time() + seconds
    while time.time() < end:
        pause = time.time() + 0.06
        while time.time() < pause:
            pass
        time.sleep(0.19)
"""
"""At work for a quarter of the time, which is far more than idle."""

TRAINING = WORK + textwrap.dedent(
    """
    import os, signal, sys
    print("begin", flush=True)
    rank, what = os.environ["RANK"], sys.argv[1]
    if what == "quiet":
        time.sleep(4)
    if what == "spin":
        work(60)
    if what == "hang":
        time.sleep(60)
    time.sleep(4 if what == "exit" else 1.5)  # on a loaded machine the watcher starts late
    if rank == "1" and what == "late":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == "1" and what == "exit":
        sys.exit(17)
    time.sleep(1)
    """
)


class Node:
    """A folder for an attempt, and the way to run a training in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "logs").mkdir()
        (folder / "launcher.py").write_text(LAUNCHER)
        (folder / "train.py").write_text(TRAINING)

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "node-0.log"

    def run(self, what: str, *options: str) -> list[dict[str, Any]]:
        """Run it to its end; the watcher's events."""
        script = 'log=$1; shift; "${@/#PARENT/$$}" & exec "$0" launcher.py "$log" "$0" train.py ' + what
        watcher = [*program("watch"), str(self.folder), "0", "PARENT", *options]
        env = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        words = ["bash", "-c", script, sys.executable, str(self.log), *watcher]
        subprocess.run(words, cwd=self.folder, env=env, timeout=180, check=False)
        return _until_its_end(self.folder)


def _until_its_end(folder: Path, within_s: float = 3) -> list[dict[str, Any]]:
    """The watcher's events. On a busy machine it notices the launcher's end late."""
    end = time.monotonic() + patience(within_s)
    while '"end"' not in (text := (folder / "agent" / "node-0.jsonl").read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def _gone(events: list[dict[str, Any]]) -> list[tuple[int, int | None, int | None]]:
    return [(event["rank"], event["exit_code"], event["signal"]) for event in events if event["event"] == "gone"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "first"),
    [
        ("late", (1, None, 9)),  # it dies when the first look, at the launcher alone, is over
        ("exit", (1, 17, None)),
    ],
)
def test_who_died_first_and_how(node: Node, what: str, first: tuple[int, int | None, int | None]) -> None:
    events = node.run(what)
    assert _gone(events) == [first, (0, 0, None)]
    assert events[0]["event"] == "start"
    assert events[-1]["event"] == "end"


def test_an_attempt_that_has_a_verdict_is_ended(node: Node) -> None:
    """The node was cut off from Slurm, and others may train already."""
    (node.folder / "verdict.json").write_text("{}\n")
    began = time.monotonic()
    events = node.run("hang")
    assert time.monotonic() - began < patience(20)
    assert events[0]["event"] == "start"


def test_a_launcher_that_ends_before_the_watcher_begins_leaves_none_behind(node: Node) -> None:
    """What takes the watcher over then, init say, has other trainings below it."""
    watch = [*program("watch"), str(node.folder), "0"]
    script = 'read -r _ <"$1"; shift; exec "$@"'
    gate = node.folder / "gate"
    os.mkfifo(gate)
    words = ["bash", "-c", f'bash -c {shlex.quote(script)} watch "$@" $$ & exec true', "launcher", str(gate), *watch]
    subprocess.run(words, timeout=60, check=True)
    gate.write_text("\n")
    wait_until((node.folder / "agent" / "node-0.jsonl").exists, 30)
    assert _until_its_end(node.folder, 30)[-1]["event"] == "end"


def test_the_time_in_which_a_job_was_suspended_is_no_silence(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    launcher = subprocess.Popen(["sleep", "60"])
    options: Any = SimpleNamespace(attempt=str(tmp_path), node=0, launcher=launcher.pid, hang_after=40, busy_after=40)
    rank: Any = SimpleNamespace(rank=0, cpu_s=lambda: 0.0, alive=lambda: False)
    gpus: Any = SimpleNamespace(sample=list)
    detector = hangs.HangDetector(options, lambda *_, **__: None, lambda _: None)
    detector.check({0: rank}, set(), gpus)
    long_ago = time.time() - 3600
    os.utime(detector.output_mark, (long_ago, long_ago))
    for late, hang in ((3600.0, False), (1.0, False)):
        detector.cpu_at = time.time() - late
        detector.check({0: rank}, set(), gpus)
        assert os.path.exists(detector.hang_file) is hang
    detector.awake_since -= 41
    detector.check({0: rank}, set(), gpus)
    assert os.path.exists(detector.hang_file)
    launcher.wait(timeout=60)


def test_what_was_silent_before_a_rank_began_does_not_count(tmp_path: Path) -> None:
    """Its launcher may take longer to start than the limit for a silence."""
    (tmp_path / "agent").mkdir()
    options: Any = SimpleNamespace(attempt=str(tmp_path), node=0, launcher=1, hang_after=4, busy_after=4)
    rank: Any = SimpleNamespace(rank=0, cpu_s=lambda: 0.0, alive=lambda: False)
    gpus: Any = SimpleNamespace(sample=list)
    detector = hangs.HangDetector(options, lambda *_, **__: None, lambda _: None)
    detector.check({}, set(), gpus)
    long_ago = time.time() - 60
    os.utime(detector.output_mark, (long_ago, long_ago))
    detector.idle_since = long_ago
    detector.check({0: rank}, set(), gpus)
    assert not os.path.exists(detector.hang_file)


ALONE = """\
import os, subprocess, sys, time
print("begin", flush=True)
if sys.argv[1] == "child works":
    subprocess.run([sys.executable, "-c", os.environ["WORK"] + "work(9)"])
else:
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("what", "hangs_there"), [("sleeps", True), ("child works", False)])
def test_a_program_without_a_launcher_is_watched_as_a_whole(tmp_path: Path, what: str, hangs_there: bool) -> None:
    (tmp_path / "logs").mkdir()
    script = 'log=$1 folder=$2; shift 2; "$@" "$folder" 0 $$ --program --hang-after=3 & '
    script += 'exec "$0" -c "$ALONE" "$WHAT" >>"$log"'
    words = [sys.executable, str(tmp_path / "logs" / "node-0.log"), str(tmp_path), *program("watch")]
    env = {**os.environ, "ALONE": ALONE, "WORK": WORK, "WHAT": what}
    subprocess.run(["bash", "-c", script, *words], env=env, timeout=120, check=False)
    events = _until_its_end(tmp_path, 20)
    assert {rank for rank, _, _ in _gone(events)} == {0}
    assert (tmp_path / "agent" / "hang.json").exists() is hangs_there


STEP = """\
cd "$1"
for rank in 0 1; do
    RANK=$rank LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 bash -c '
        if [ "$RANK" = 0 ]; then $watch "${@:2}" "$$" --each-process --hang-after=3 & fi
        exec ./starter "$1" 2>"logs/node-0.rank-$RANK.log"
    ' "" "$@" &
done
wait
"""
"""Starts each process, as srun does; the first one starts the node's watcher."""

STARTER = """\
import subprocess, sys, time
time.sleep(2)
subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])
"""
"""A runtime that stays the parent of the training."""


@pytest.mark.slow
def test_a_hang_in_images_is_ended_although_the_training_starts_late(tmp_path: Path) -> None:
    """The watcher itself has the variables of a rank, too."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "starter.py").write_text(STARTER)
    (tmp_path / "starter").write_text(f"#!{sys.executable}\nexec(open('starter.py').read())\n")
    (tmp_path / "starter").chmod(0o755)
    words = ["bash", "-c", STEP, "", str(tmp_path), str(tmp_path), "0"]
    env = {**os.environ, "watch": " ".join(program("watch")), "PYTHONFAULTHANDLER": "1"}
    began = time.monotonic()
    subprocess.run(words, env=env, timeout=180, check=False)
    assert time.monotonic() - began < patience(30)
    events = _until_its_end(tmp_path)
    assert {rank for rank, _, _ in _gone(events)} == {0, 1}
    for rank in (0, 1):
        assert "Fatal Python error: Aborted" in (tmp_path / "logs" / f"node-0.rank-{rank}.log").read_text()


@pytest.mark.slow
def test_silence_at_work_and_silence_without_work_have_limits_of_their_own(node: Node) -> None:
    """0 is never: each limit counts without the other."""
    node.run("quiet", "--busy-after=4")
    assert not (node.folder / "agent" / "hang.json").exists()
    events = node.run("spin", "--busy-after=3")
    report = json.loads((node.folder / "agent" / "hang.json").read_text())
    assert (report["idle"], report["silent_s"] >= 3) == (False, True)
    assert {rank for rank, _, _ in _gone(events)} == {0, 1}


SMI = """#!/bin/sh
case $1 in
nvlink) printf 'GPU 0: NVIDIA H100 (UUID: GPU-1)\\n\\t Link 0: 26.562 GB/s\\n\\t Link 1: <inactive>\\n' ;;
*) printf '0, 97, 70123, 61, 688.13, 1980, 0x0000000000000004, 0\\n'; exec sleep 60 ;;
esac
"""


def test_a_training_that_writes_is_left_alone_and_sampled(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (node.folder / "nvidia-smi").write_text(SMI)
    (node.folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{node.folder}:{os.environ['PATH']}")
    events = node.run("well", "--sample-every=1", "--hang-after=4")
    assert not (node.folder / "agent" / "hang.json").exists()
    gone = _gone(events)
    assert sorted(rank for rank, _, _ in gone) == [0, 1]
    # On a busy machine the launcher may take notice of an end before the watcher does.
    assert {(code or 0, signal) for _, code, signal in gone} == {(0, None)}
    sizes = [event["size"] for event in events if event["event"] == "output"]
    assert sizes
    assert sizes == sorted(set(sizes))
    samples = [event for event in events if event["event"] == "sample"]
    sample = [one for one in samples if set(one["rss_mib"]) == {"0", "1"}][-1]  # while a rank ends, it has less
    assert sample["nvlinks"] == 1
    assert (sample["gpus"][0]["util"], sample["gpus"][0]["throttle"]) == (97, "0x0000000000000004")
    assert set(sample["places"]) == {"0", "1"}
    assert all(set(places) & {"hrtimer_nanosleep", "S"} for places in sample["places"].values())


@pytest.mark.slow
def test_a_gpu_that_broke_is_named_when_a_rank_fails(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "*index,ecc*) printf '0, 1\\n1, 0\\n' ;;\n"
    smi = SMI.replace("case $1", "case $*").replace("\n*)", f"\n{broken}*)").replace("nvlink)", "nvlink*)")
    (node.folder / "nvidia-smi").write_text(smi)
    (node.folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{node.folder}:{os.environ['PATH']}")
    faults = [event["text"] for event in node.run("exit", "--sample-every=1") if event["event"] == "gpu_fault"]
    assert faults == ["GPU 0: 1 uncorrectable memory errors, 0 at the start"]


def test_how_far_the_processes_are_is_one_event_for_each_change(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = [*program("watch"), str(tmp_path), "0", str(os.getpid()), "--phases", str(pipe)]
    end = os.open(pipe, os.O_RDWR)
    os.write(end, b"launcher -\nmet -\npython 0\nnonsense\npython 1\nlauncher -\n")
    watcher = subprocess.Popen(words, stdin=end)
    told = tmp_path / "agent" / "node-0.jsonl"

    def wait_for(word: str) -> list[dict[str, str]]:
        wait_until(lambda: told.exists() and word in told.read_text(), 30)
        return [event["marks"] for event in map(json.loads, told.read_text().splitlines()) if "marks" in event]

    try:
        assert wait_for("python") == [{"-": "met", "0": "python", "1": "python"}]
        os.write(end, b"torch 1\n")
        assert wait_for("torch")[1:] == [{"-": "met", "0": "python", "1": "torch"}]
        os.write(end, b"raised 1 1795659363139\nraised 1 x\nsaved 0 1500\nsaved 1 9\nsaved 0 1x\ntorch 0 7\n")
        wait_for("saved")
        os.write(end, b"joined -\n")  # torchrun starts the ranks again
        assert wait_for("joined")[2:] == [{"-": "joined"}]
        events = [json.loads(line) for line in told.read_text().splitlines()]
        assert [event["seconds"] for event in events if event["event"] == "saved"] == [1.5]
        assert [(event["rank"], event["t"]) for event in events if event["event"] == "raised"] == [(1, 1795659363.139)]
    finally:
        watcher.kill()
        watcher.wait()


def test_no_program_is_run_by_what_a_rank_says_of_its_environment(tmp_path: Path) -> None:
    """Inside an image, VIRTUAL_ENV names a folder that on the node may belong to somebody else."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "venv" / "bin"):
        (folder / "py-spy").write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
        (folder / "py-spy").chmod(0o755)
    process = subprocess.Popen(["sleep", "60"], env={"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": str(tmp_path / "venv")})
    try:
        rank = Rank(process.pid, 0, processes.stat_of(process.pid)[19])
        hangs.write_stack(rank, str(tmp_path / "rank-0.txt"))
    finally:
        process.kill()
        process.wait()
    assert "waits in the kernel" in (tmp_path / "rank-0.txt").read_text()
    assert not (tmp_path / "PWNED").exists()


def test_what_a_rank_reports_in_the_moment_of_the_end_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(pipe, b"saved 0 1500\nraised 0 1700000000000\n")
    gone = subprocess.Popen(["true"])
    gone.wait()
    command = [*program("watch"), str(tmp_path), "0", str(gone.pid), "--phases", str(tmp_path / "pipe")]
    subprocess.run(command, stdin=pipe, check=True, timeout=patience(30))
    os.close(pipe)
    lines = (tmp_path / "agent" / "node-0.jsonl").read_text().splitlines()
    assert {"saved", "raised"} <= {json.loads(line)["event"] for line in lines}


@pytest.mark.parametrize(("count", "killed"), [("oom_kill 3\n", False), ("oom_kill 4\n", True), ("", None)])
def test_where_the_node_counted_kills_of_others_the_cgroup_of_a_rank_decides(
    tmp_path: Path, count: str, killed: bool | None
) -> None:
    file = tmp_path / "memory.events"
    file.write_text(count)
    kills = OomKills()
    kills.before_on_host = -1
    kills.before[0] = ([str(file)], 3)
    assert kills.killed(0) is killed
