"""`config launcher --job` and `config hostfile --job`: what they print starts the plan of a job file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.strategies.conftest import Config

SITE = """\
name: lab
scheduler:
  type: ssh
  hosts:
    gpu1: {slots: 2, address: 127.0.0.1}
    gpu2: {slots: 1, address: 127.0.0.1, interface: lo}
node_classes:
  host: {cpus: 2}
queues:
  all: {node_class: host, memory: omit}
"""
NAMES = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT NCCL_SOCKET_IFNAME"
PROGRAM = f"""\
import os, sys
with open(f"seen-{{os.environ['RANK']}}", "w") as note:
    note.write(repr([*(os.environ.get(name) for name in "{NAMES}".split()), *sys.argv[1:]]))
"""


@pytest.fixture
def job(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lab.yaml").write_text(SITE)
    (tmp_path / "a program.py").write_text(PROGRAM)
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HPC_LAUNCH_HOME", str(tmp_path / "my runs"))
    return write(tmp_path, "srun")


def write(folder: Path, launcher: str, **more: object) -> Path:
    keys = {"name": "hand", "nodes": 2, "launcher": launcher, "script": "a program.py", "args": {"note": "it's $HOME"}}
    (folder / "job.yaml").write_text(yaml.safe_dump({**keys, "environment": {"python": sys.executable}, **more}))
    return folder / "job.yaml"


def run_all(start: Path, count: int) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in NAMES.split()}
    steps = [subprocess.Popen(["bash", start, str(node)], env=environment) for node in range(count)]
    assert [step.wait(timeout=120) for step in steps] == [0] * count


@pytest.mark.parametrize(
    "launcher",
    [
        "srun",
        pytest.param("torchrun", marks=[pytest.mark.prove, pytest.mark.torch]),
        pytest.param("deepspeed", marks=[pytest.mark.prove, pytest.mark.torch("deepspeed")]),
    ],
)
def test_the_script_starts_the_processes_of_uneven_hosts(config: Config, job: Path, launcher: str) -> None:
    done = config("launcher", "--job", str(write(job.parent, launcher)), "--site", "lab", "-o", "start.sh")
    assert (done.code, done.out) == (0, "")
    run_all(Path("start.sh"), 2)
    for rank, (local, size, node, interface) in enumerate(
        [("0", "2", "0", None), ("1", "2", "0", None), ("0", "1", "1", "lo")]
    ):
        seen = (job.parent / f"seen-{rank}").read_text()
        shown = [str(rank), local, "3", size, node, "127.0.0.1", "29500", interface, "--note", "it's $HOME"]
        if launcher != "srun":  # DeepSpeed sets no NODE_RANK, and adds an argument of its own
            assert f"'{rank}', '{local}', '3'" in seen
            assert '"it\'s $HOME"' in seen
        else:
            assert seen == repr(shown)


def test_a_process_that_fails_ends_the_others(config: Config, job: Path) -> None:
    command = ["bash", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 60"]
    file = job.parent / "job.yaml"
    file.write_text(yaml.safe_dump({"name": "hand", "nodes": 2, "launcher": "srun", "command": command}))
    assert config("launcher", "--job", str(file), "--site", "lab", "-o", "start.sh").code == 0
    assert subprocess.run(["bash", "start.sh", "0"], timeout=50, check=False).returncode == 7
    for word in ("", "2", "x", "-1", "1 ", "08"):
        done = subprocess.run(["bash", "start.sh", word], capture_output=True, text=True, check=False)
        assert (done.returncode, "usage: bash start.sh NODE_RANK: 0 to 1" in done.stderr) == (1, True), word


def test_a_program_that_starts_the_others_gets_the_host_file(config: Config, job: Path) -> None:
    file = job.parent / "job.yaml"
    command = ["bash", "-c", 'cat "$HPC_LAUNCH_ATTEMPT_DIR/hostfile" >seen']
    file.write_text(yaml.safe_dump({"name": "hand", "nodes": 2, "launcher": "none", "command": command}))
    done = config("launcher", "--job", str(file), "--site", "lab", "--json", "-o", "start.sh")
    answer = json.loads(done.out)
    assert answer["nodes"] == [{"host": "gpu1", "node_rank": 0, "slots": 2, "command": "bash start.sh 0"}]
    assert answer["script"] == Path("start.sh").read_text()
    run_all(Path("start.sh"), 1)
    assert Path("seen").read_text() == answer["hostfile"] == "gpu1 slots=2\ngpu2 slots=1\n"


def test_the_host_file_of_a_plan(config: Config, job: Path) -> None:
    assert config("hostfile", "--job", str(job), "--site", "lab").out == "gpu1 slots=2\ngpu2 slots=1\n"
    (job.parent / "lab.yaml").write_text(SITE.replace("type: ssh", "type: ssh\n  include: gpu1:1@gpu2"))
    assert config("hostfile", "--job", str(job), "--site", "lab").out == (
        "# deepspeed --include=gpu1:1@gpu2\ngpu1 slots=2\ngpu2 slots=1\n"
    )


def test_the_nodes_of_a_slurm_job(config: Config, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = SITE.partition("node_classes")[2]
    (job.parent / "lab.yaml").write_text(f"name: lab\nscheduler: slurm\nnode_classes{hardware}")
    words = ["launcher", "--job", str(job), "--site", "lab", "--master-port", "12345", "--json"]
    done = config(*words)
    assert (done.code, "add --hosts" in done.err) == (2, True)
    answer = json.loads(config(*words, "--hosts", "n[1-2]").out)
    assert (answer["master_addr"], answer["master_port"]) == ("n1", 12345)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "m[07-08]")
    assert [one["host"] for one in json.loads(config(*words).out)["nodes"]] == ["m07", "m08"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--script", "x.py", "--json"], "--json requires --job"),
        (["--script", "x.py", "--hosts", "n1"], "--hosts requires --job"),
        (["--nodes", "2"], "Missing option '--script' or '--job'"),
        (["--job", "job.yaml", "--nodes", "2"], "--nodes and --job exclude each other"),
        (["--job", "missing.yaml"], "missing.yaml"),
        (["--job", "job.yaml", "--site", "lab", "--hosts", "n1"], "--hosts is for jobs on Slurm"),
    ],
)
def test_options_that_do_not_go_together(config: Config, job: Path, options: list[str], message: str) -> None:
    done = config("launcher", *options)
    assert done.code in {2, 3}
    assert message in done.err
