"""Hosts with 8, 8 and 4 GPUs, DeepSpeed's pdsh launcher and a host file, as LMFlow's users set them up by hand.

On three sshd hosts with 2, 2 and 1 slots, real pdsh and real DeepSpeed. LMFlow's script and its training are stand-ins.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.cluster.config import SYSTEM_PATH
from tests.cluster.faults import wait_until
from tests.cluster.settings import ClusterUnavailable
from tests.guides.hosts import BY_HAND, SAYS, SLOTS, compared, hosts_of, on_first, said
from tests.here import launch
from tests.slurm.own_program import SLEEPS, job_of, wait_for_ranks
from tests.ssh.ssh_user import SshUser
from tests.ssh.test_ssh_check import planted, record

STANDIN = Path(__file__).parent / "standins" / "run_continual_pretrain.sh"
HOSTFILE = "100.100.100.1 slots=8\n100.100.100.2 slots=8\n100.100.105.1 slots=4\n"
"""The guide's."""
OPTIONS = ["--model_name_or_path", "meta-llama/Meta-Llama-3-8B", "--output_model", "finetuned_llama"]
COMMAND = (
    f"./scripts/run_continual_pretrain.sh {' '.join(OPTIONS)} "
    '--deepspeed_args "--master_port=11000 --master_addr=10.77.0.1 '
    '--include=10.77.0.1:0,1@10.77.0.2:0,1@10.77.0.3:0 --hostfile=configs/hostfile"'
)
PORTS = (20140, 20149)
ONE_OF_THEM = r"port 201(4\d)"


@pytest.fixture
def user(cluster: Cluster, user_dir: Path) -> SshUser:
    try:
        return hosts_of(cluster, user_dir)
    except ClusterUnavailable as missing:
        pytest.skip(str(missing))


def attempt(user: SshUser) -> dict[str, Any]:
    """The only attempt of the newest run."""
    (only,) = user.status()["attempts"]
    return dict(only)


@pytest.mark.torch("deepspeed")
def test_the_host_file_is_that_of_the_guide_and_deepspeed_reads_it(tmp_path: Path) -> None:
    words = ["config", "hostfile", "--hosts", "100.100.100.[1-2]:8,100.100.105.1:4", "-o", "hostfile"]
    assert launch(tmp_path, *words).returncode == 0
    assert (tmp_path / "hostfile").read_text() == HOSTFILE
    code = "from deepspeed.launcher.runner import fetch_hostfile; print(sum(fetch_hostfile('hostfile').values()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "20"


def test_plan_and_cost_count_the_slots_of_each_host(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text(HOSTFILE)
    site = {
        "name": "lab",
        "scheduler": {"type": "ssh", "hostfile": "hostfile"},
        "node_classes": {"host": {"cpus": 64, "gpus": 8, "gpu_memory": "80G"}},
        "queues": {"all": {"node_class": "host", "memory": "omit"}},
    }
    job = {"name": "lmflow", "nodes": 3, "launcher": "deepspeed", "script": "train.py", "time": "1:00:00"}
    for name, value in (("lab.yaml", site), ("job.yaml", job)):
        (tmp_path / name).write_text(yaml.safe_dump(value))
    (tmp_path / "train.py").touch()
    said = launch(tmp_path, "plan", "job.yaml", "--site", "./lab.yaml").stdout
    assert "3 nodes with 8 + 8 + 4 GPUs" in said
    assert "20 processes = DP 20" in said
    assert "at most 20 GPU-hours" in said
    assert launch(tmp_path, "config", "hostfile", "--job=job.yaml", "--site=./lab.yaml").stdout == HOSTFILE


@pytest.mark.prove
@pytest.mark.torch("deepspeed")
def test_the_command_of_the_guide_gives_the_same_ranks_by_hand_unchanged_and_planned(user: SshUser) -> None:
    user.job(SAYS, "examples/finetune.py")
    user.job("".join(f"10.77.0.{at} slots={slots}\n" for at, slots in SLOTS.items()), "configs/hostfile")
    user.cluster.write(Path(user.job(STANDIN.read_text(), f"scripts/{STANDIN.name}")), STANDIN.read_text(), 0o755)
    user.job("NCCL_SOCKET_IFNAME=eth0\n", ".deepspeed_env")  # in place of ~/.bashrc: other tests share the home
    hosts = "".join(f"    10.77.0.{at}: {{interface: eth0}}\n" for at in SLOTS)
    user.profile(f"hostfile: configs/hostfile\n  hosts:\n{hosts}")
    wanted = said(on_first(user, COMMAND, **BY_HAND))
    assert list(wanted) == [0, 1, 2, 3, 4]
    common: dict[str, Any] = {"name": "lmflow", "nodes": 3, "retry": {"max_attempts": 1}}
    unchanged = said(user.completed(user.job(yaml.safe_dump({**common, "launcher": "none", "command": COMMAND}))))
    assert compared(unchanged, "MASTER_ADDR", "MASTER_PORT", "words") == compared(
        wanted, "MASTER_ADDR", "MASTER_PORT", "words"
    )
    script = {"launcher": {"name": "deepspeed", "multinode": "pdsh"}, "script": "examples/finetune.py"}
    planned = said(user.completed(user.job(yaml.safe_dump({**common, **script, "args": OPTIONS}))))
    assert compared(planned, "MASTER_ADDR", "words") == compared(wanted, "MASTER_ADDR", "words")
    user.nothing_left()


def test_a_start_on_uneven_hosts_waits_for_nobody_and_doctor_counts_them(user: SshUser) -> None:
    job = job_of(user, SLEEPS, "srun", nodes=3)
    levels = json.loads(user.launch("doctor", job, "--no-job", "--json").stdout)
    assert {level["name"]: level["state"] for level in levels}["hosts"] == "ok", levels
    assert "3 nodes with 2 + 2 + 1 processes" in levels[0]["lines"][0]
    assert user.launch("submit", job).returncode == 0
    wait_for_ranks(user, 5)
    wait_until(
        lambda: bool(re.search(r"3 of 3 nodes", user.launch("status", "@last").stdout)),
        explain=lambda: user.launch("status", "@last").stdout,
        every=0.5,
        timeout=30,
    )
    assert user.launch("cancel", "@last").returncode == 0
    user.nothing_left()


@pytest.mark.skipif(shutil.which("nft", path=SYSTEM_PATH) is None, reason="needs the Debian package nftables")
def test_a_firewall_that_blocks_the_ports_is_named_with_host_and_port(user: SshUser) -> None:
    hosts = ", ".join(f"n{at}: {{slots: {slots}, address: 10.77.0.{at}}}" for at, slots in SLOTS.items())
    ports = f"network: {{ports: [{PORTS[0]}, {PORTS[1]}]}}\n"
    user.profile(f"hosts: {{{hosts}}}", preflight="quick", more=ports)
    table = "inet " + re.sub(r"\W", "_", f"of {user.home.name}")
    rule = f"type filter hook output priority 0; ip daddr 10.77.0.1 tcp dport {PORTS[0]}-{PORTS[1]} drop"
    with planted(user, ("n3", f"nft 'table {table} {{ chain out {{ {rule}; }}; }}'", f"nft delete table {table}")):
        done = user.launch("submit", job_of(user, "print('trained')\n", "none", nodes=3), "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    bad = record(user)["bad"]
    assert [one["node"] for one in bad] == ["n3"], bad
    assert re.search(ONE_OF_THEM, bad[0]["text"]), bad
    why = user.launch("why", "@last").stdout
    assert re.search(rf"n3: cannot reach 10.77.0.1 {ONE_OF_THEM}", why), why
    assert "trained" not in user.launch("logs", "@last").stdout
    user.nothing_left()


@pytest.mark.prove
@pytest.mark.torch
def test_the_collectives_are_measured_on_uneven_hosts_before_the_training(user: SshUser) -> None:
    job = job_of(user, "pass\n", "torchrun", nodes=3)
    done = user.launch("doctor", job, "--bench", "--json")
    level = json.loads(done.stdout)[-1]
    assert (level["name"], level["state"]) == ("bench", "ok"), done.stdout + done.stderr
    assert "first measurement of 3 nodes with 2 + 2 + 1 processes with gloo on this site" in level["lines"]
    curves = level["values"]["measured"]["curves"]
    assert "all-reduce" in curves, curves
    assert all(bandwidth > 0 for points in curves.values() for _, _, bandwidth in points)
    user.nothing_left()


COUNTS = "import time\nfor step in range(1, 2000):\n    print('step', step, flush=True)\n    time.sleep(0.05)\n"


@pytest.mark.prove
def test_one_process_each_host_alone_and_all_in_turn(user: SshUser) -> None:
    job = job_of(user, COUNTS, "srun", nodes=3, progress={"step": r"step (\d+)"})
    done = user.launch("doctor", job, "--ladder", "--json")
    levels = [(level["name"], level["state"], level["lines"]) for level in json.loads(done.stdout)]
    alone = [lines[0][:2] for name, state, lines in levels if (name, state) == ("one node", "ok")]
    assert alone == ["n1", "n2", "n3"], levels
    assert [(name, state) for name, state, _ in levels][-2:] == [("two nodes", "ok"), ("whole job", "ok")]


@pytest.mark.prove
@pytest.mark.torch("deepspeed")
def test_ranks_that_are_killed_on_one_host_are_a_crash_and_no_lack_of_memory(user: SshUser) -> None:
    job = job_of(user, SLEEPS, {"name": "deepspeed", "multinode": "pdsh"}, nodes=3)
    assert user.launch("submit", job).returncode == 0
    wait_for_ranks(user, 5)
    user.kill("n2", "a program.py")
    user.until("@last", "FAILED", "STOPPED")
    only = attempt(user)
    why = json.loads(user.launch("why", "@last", "--json").stdout)
    assert (only["class"], why["first_failure"]["node"]) == ("segfault_or_abort", "n2"), why
    user.nothing_left()


@pytest.mark.prove
def test_a_lost_host_is_announced_with_the_processes_that_are_left_and_used_again(user: SshUser) -> None:
    waits = "import os, time\nwhile os.environ['HPC_LAUNCH_ATTEMPT'] != '3': time.sleep(0.2)\n"
    begun = "open(os.environ['HPC_LAUNCH_ATTEMPT_DIR'] + '/began-' + os.environ['RANK'], 'w').close()\n"
    program = waits.replace("time\n", f"time\n{begun}", 1)
    retry = {"max_attempts": 3, "backoff": {"first": 0}, "no_progress": 3}
    run = user.submit(job_of(user, program, "srun", nodes=2, retry=retry))["run"]
    wait_for_ranks(user, 4)
    user.kill("n2", "sshd")
    second = "runs/*/attempts/002/began-*"
    wait_until(lambda: len(list(user.home.glob(second))) == 3, explain=lambda: user.launch("status", run).stdout)
    assert "attempt 2 has 3 processes instead of 4" in user.launch("status", run).stdout
    user.kill("n1", "a program.py")
    attempts = user.until(run, "COMPLETED", "FAILED", "STOPPED")["attempts"]
    assert [one["nodes"] for one in attempts] == [["n1", "n2"], ["n1", "n3"], ["n1", "n2"]], attempts
    user.nothing_left()
