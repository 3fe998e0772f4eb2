"""The heartbeat of the nodes of a job with spares: who counts as lost, and a node that is cut off ends its ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_launch.agent import watch_node
from tests.busy import patience
from tests.cluster.requirements import REPOSITORY


@pytest.fixture
def training() -> Iterator[subprocess.Popen[bytes]]:
    """A launcher with a rank below it."""
    with subprocess.Popen(["bash", "-c", "sleep 60 & wait"]) as process:
        yield process
        process.kill()


@pytest.fixture
def nowhere() -> Iterator[int]:
    """A port that answers nothing, as a node behind a cut cable: its queue of connections is full."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port: int = server.getsockname()[1]
        clients = [socket.socket() for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        yield port
        for client in clients:
            client.close()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_node, "BEAT_S", 0.1)
    monkeypatch.setattr(watch_node, "FENCE_S", 0.5)
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "9")  # it refuses: the first node is there


def ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.mark.parametrize("silent", ["both", "file server", "first node"])
def test_a_node_that_is_cut_off_ends_its_ranks_but_not_where_one_of_two_is_silent(
    tmp_path: Path, training: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, nowhere: int, silent: str
) -> None:
    if silent != "file server":
        monkeypatch.setenv("MASTER_PORT", str(nowhere))
    if silent != "first node":
        os.mkfifo(tmp_path / "beat-1")  # nobody reads it: opening it takes for ever
    beats = watch_node.Heartbeat(str(tmp_path), 1, training.pid)
    beats.start()

    assert ended(training, patience(15) if silent == "both" else 3) == (silent == "both")

    beats.over = True
    if silent == "first node":
        beats.end()
        assert watch_node.beat(str(tmp_path), 1) == "end"
    else:
        os.close(os.open(tmp_path / "beat-1", os.O_RDONLY | os.O_NONBLOCK))


def test_a_node_that_comes_back_after_it_was_given_up_ends_its_ranks(
    tmp_path: Path, training: subprocess.Popen[bytes]
) -> None:
    beats = watch_node.Heartbeat(str(tmp_path), 1, training.pid)
    (tmp_path / "lost").write_text("n20 n21\n")
    beats.start()
    assert not ended(training, 1), "another node is lost"

    (tmp_path / "lost").write_text("n2\n")

    assert ended(training, patience(10))
    beats.over = True


def heard(tmp_path: Path, *ages: float, looked: float = 2.0) -> watch_node.Nodes:
    """Nodes that were last heard so many seconds ago."""
    now = time.monotonic()
    nodes = watch_node.Nodes(str(tmp_path), len(ages))
    for node, age in enumerate(ages):
        (tmp_path / f"beat-{node}").write_text("7\n")
        nodes.heard[node] = "7", now - age
    nodes.changed = set(nodes.heard)
    nodes.looked = now - looked
    return nodes


@pytest.mark.parametrize(
    ("ages", "looked", "lost"),
    [((1, 16, 3), 2, [1]), ((1, 14, 3), 2, []), ((16, 17, 16), 2, []), ((1, 30), 20, [])],
    ids=["silent", "not long enough", "all at once", "the look was held up"],
)
def test_a_node_is_lost_when_it_is_silent_and_another_is_not(
    tmp_path: Path, ages: tuple[float, ...], looked: float, lost: list[int]
) -> None:
    assert heard(tmp_path, *ages, looked=looked).silent() == lost


def test_a_node_that_was_silent_before_needs_no_other_silence(tmp_path: Path) -> None:
    for node, text in enumerate(("5", "7", "9")):
        (tmp_path / f"beat-{node}").write_text(f"{text}\n")
    nodes = watch_node.Nodes(str(tmp_path), 3, {1: "7", 2: "8"})
    assert nodes.silent() == [], "the others may be silent now, too"
    (tmp_path / "beat-0").write_text("6\n")
    assert nodes.silent() == [1]


@pytest.mark.parametrize("writable", [True, False])
def test_nodes_that_cannot_write_their_heartbeat_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], writable: bool
) -> None:
    (tmp_path / "agent").mkdir()
    beats = ["beat-0", "beat-1", "beat-2"] if writable else ["beat-1"]
    for name in beats:
        (tmp_path / "agent" / name).write_text("7\n")
    monkeypatch.setattr(watch_node, "NEVER_S", 0.1)
    monkeypatch.setattr(watch_node, "LOOK_S", 0.1)
    with subprocess.Popen(["sleep", "1"]) as step:
        threading.Thread(target=step.wait, daemon=True).start()
        assert watch_node.main([str(tmp_path), str(step.pid), "n1", "n2", "n3"]) == 1

    said = capfd.readouterr().err
    assert said.count("no heartbeat from n1, n3, ") == (0 if writable else 1)
    assert said.count(f"is {tmp_path}/agent writable there?") == (0 if writable else 1)


def test_a_node_that_has_ended_or_not_begun_is_not_lost(tmp_path: Path) -> None:
    nodes = heard(tmp_path, 1, 30, 30)
    (tmp_path / "beat-1").write_text("end\n")
    (tmp_path / "beat-2").unlink()
    nodes.heard.pop(2)
    assert nodes.silent() == []


PART = REPOSITORY / "slurm_templates" / "parts" / "heartbeat.sh"
SRUN = """\
#!/bin/sh
case $* in
    *--nodelist=n2*) {n2} ;;
    *) {n1} ;;
esac
"""


@pytest.mark.parametrize(
    ("n1", "n2", "code"),
    [
        ("echo within-reach", "sleep 60", 0),
        ("echo within-reach", "echo 'srun: error: Task launch failed: Communication connection failure'; exit 1", 0),
        ("echo within-reach", "echo within-reach", 1),
        ("echo within-reach", "echo 'srun: error: Unable to create step: Invalid job id'; exit 1", 1),
        ("sleep 60", "sleep 60", 2),
        ("exit 1", "sleep 60", 2),
    ],
    ids=["hangs", "connection", "answers", "no-step", "controller-hangs", "controller-refuses"],
)
def test_a_node_is_out_of_reach_only_while_slurm_starts_steps_elsewhere(
    n1: str, n2: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "agent").mkdir()
    for name, text in {
        "srun": SRUN.format(n1=n1, n2=n2),
        "timeout": '#!/bin/sh\nexec /usr/bin/timeout 1 "${@:4}"\n',
    }.items():
        (tmp_path / name).write_text(text.replace("#!/bin/sh", "#!/bin/bash"))
        (tmp_path / name).chmod(0o755)
    script = f"PATH={tmp_path}:$PATH; . {PART}; attempt_dir={tmp_path} hosts=(n1 n2); is_out_of_reach n2"
    assert subprocess.run(["bash", "-c", script], check=False).returncode == code


@pytest.mark.parametrize(("answers", "before"), [("1", ""), ("2", "n3=14")], ids=["reachable", "controller-hangs"])
def test_a_silence_goes_on_where_slurm_did_not_answer(answers: str, before: str, tmp_path: Path) -> None:
    """The node need not be silent for the whole time again."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "agent.pyz").write_text(
        f"import sys\nwith open('{tmp_path}/told', 'a') as told:\n    print(*sys.argv[4:], file=told)\n"
        f"print('n2=5 n3=14') if len(open('{tmp_path}/told').readlines()) == 1 else sys.exit(1)\n"
    )
    script = f"""
        . {PART}
        say() {{ echo "$@"; }}
        sleep() {{ :; }}
        is_out_of_reach() {{ [ "$1" = n2 ] || return {answers}; return 1; }}
        HPC_LAUNCH_RUN_DIR={tmp_path} attempt_dir={tmp_path} hosts=(n1 n2 n3)
        watch_beats $$
    """
    done = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "n2 n3: no heartbeat, but not known to be out of reach\n"
    assert (tmp_path / "told").read_text().splitlines() == ["n1 n2 n3", f"{before} n1 n2 n3".strip()]
