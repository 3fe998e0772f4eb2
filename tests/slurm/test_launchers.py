"""What each launcher hands on, over four nodes: ranks, the address to meet at, exit codes, warnings, a log by rank."""

from __future__ import annotations

import os
import re
from functools import partial

import pytest
import yaml

from tests.marks import prove
from tests.slurm.own_program import SLEEPS, job_of, wait_for_ranks
from tests.slurm.user import User
from tests.topology import node

LAUNCHERS = {
    "static": {"name": "torchrun"},
    "c10d": {"name": "torchrun", "rendezvous": "c10d"},
    "srun": {"name": "srun"},
}
"""One launcher a node with each rendezvous, and one task a process."""

WAITS = f"""\
import os
rank = os.environ["RANK"]
print("rank", rank, "of", os.environ["WORLD_SIZE"], "on", os.uname().nodename, flush=True)
{SLEEPS}"""

job = partial(job_of, nodes=4, processes_per_node=1, cpus_per_node=1)


@pytest.mark.prove
def test_a_rank_that_saves_for_long_after_the_others_ended_is_left_alone(user: User) -> None:
    saves = (
        "import os, time\nprint('step 1/1', flush=True)\nos.environ['RANK'] == '0' and time.sleep(75)\nprint('saved')\n"
    )
    user.completed(job(user, saves, "srun", nodes=2))
    assert user.launch("logs", "@last", "--rank", "0").stdout.count("saved") == 1


@pytest.mark.prove  # tests/slurm/test_continuation.py warns a training, too
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["static", "c10d", "srun"])
def test_a_warning_and_a_log_by_rank(user: User, launcher: str) -> None:
    run = user.submit(job(user, WAITS, LAUNCHERS[launcher]))
    wait_for_ranks(user, 4)
    user.cluster.run(["scancel", "--batch", "--signal=USR1", run["job_id"]], check=True)
    assert user.until("@last", "COMPLETED", "FAILED")["state"] == "COMPLETED"
    log = user.launch("logs", "@last").stdout
    ranks = re.findall(r"rank (\d) of 4 on (n\d)", log)
    assert sorted(rank for rank, _ in ranks) == ["0", "1", "2", "3"]
    if launcher != "c10d":  # it sorts the nodes itself
        assert set(ranks) == {("0", "n1"), ("1", "n2"), ("2", "n3"), ("3", "n4")}
    for rank in range(4):
        only = user.launch("logs", "@last", "--rank", str(rank)).stdout
        assert re.findall(r"rank (\d) was warned", only) == [str(rank)]


@pytest.mark.prove  # tests/slurm/test_without_srun.py has the exit code, too
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["static", "c10d", "srun"])
def test_a_rank_that_fails_ends_the_others_and_its_code_comes_out(user: User, launcher: str) -> None:
    program = WAITS + "    if rank == '2': raise SystemExit(7)\n"
    done = user.launch("submit", job(user, program, LAUNCHERS[launcher]), "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    # torchrun has one code for every failure of a process, 1 (torch/distributed/run.py).
    assert user.status()["attempts"][0]["exit_code"] == (7 if launcher == "srun" else 1)
    if launcher == "srun":
        assert "task 2: Exited with exit code 7" in user.launch("logs", "@last").stdout
    user.nothing_left()


@pytest.mark.parametrize(
    ("network", "address"),
    [
        ("{master: {interface: eth0}}", "10.77.0.1"),
        ("{master: {resolve: ip}}", "10.77.0.1"),
        ("{master: {resolve: fqdn}}", "n1"),
        ("{master: {suffix: i}}", "n1i"),
        ("{interface: [eth0, lo]}", "n1"),
    ],
)
def test_the_address_is_made_as_the_site_says(user: User, network: str, address: str) -> None:
    user.site(f"network: {network}\n")
    command = ["sh", "-c", 'echo "at $MASTER_ADDR through $NCCL_SOCKET_IFNAME and $GLOO_SOCKET_IFNAME."']
    text = {"name": "at", "nodes": 2, "launcher": "srun", "command": command, "retry": {"max_attempts": 1}}
    text["sbatch"] = {"nodelist": "n[1-2]"}  # whatever the test before has left there
    log = user.completed(user.job(yaml.safe_dump(text)))
    through = "=eth0,lo and eth0,lo" if "interface: [" in network else " and "
    assert log.count(f"at {address} through {through}.") == 2


def test_the_interface_of_the_first_node_is_found_from_a_shell_elsewhere(user: User) -> None:
    """`hpc-launch run` in a shell of salloc runs on the login node."""
    user.site("network: {master: {interface: eth0}}\n")
    file = user.job("name: at\nnodes: 2\nlauncher: srun\ncommand: sh -c 'echo at $MASTER_ADDR.'\n")
    words = ["salloc", "--nodelist=n[1-2]", "--nodes=2", "--cpus-per-task=2", "hpc-launch", "run", file]
    done = user.cluster.run(words, cwd=user.home, env=user.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert user.launch("logs", "@last").stdout.count("at 10.77.0.1.") == 2


def test_an_interface_that_is_not_there_is_named(user: User) -> None:
    user.site("network: {master: {interface: ib7}}\n")
    done = user.launch("submit", job(user, WAITS, "srun"), "--wait")
    assert done.returncode == 1
    assert "ib7 of n1 has no address" in user.launch("logs", "@last").stdout


@pytest.mark.parametrize(
    ("launch", "launcher", "seen"),
    [  # with `none` Slurm names no GPU and hides none; here no cgroup hides the others
        ("{gpu_bind: {process: none}, cpu_bind: {process: cores}, mem_bind: {process: local}}", "srun", ["None"] * 4),
        ("{gpu_bind: {process: 'map_gpu:3,1,0,2'}}", "srun", ["3", "1", "0", "2"]),
        ("{gpus_per_task: true}", "srun", ["0", "1", "2", "3"]),
        ("{gpu_bind: {process: 'map_gpu:3,1,0,2', node: none}, cpu_bind: {node: none}}", "torchrun", ["0,1,2,3"] * 4),
    ],
)
def test_processes_see_the_gpus_that_the_site_binds_them_to(
    user: User, launch: str, launcher: str, seen: list[str]
) -> None:
    user.site(f"launch: {launch}\n")
    program = "from os import environ\nprint('rank', environ['RANK'], 'sees', environ.get('CUDA_VISIBLE_DEVICES'))\n"
    keys = {"gpus_per_node": 4, "processes_per_node": 4, "cpus_per_node": 4}
    log = user.completed(job(user, program, launcher, nodes=1, **keys))
    found = dict(re.findall(r"rank (\d) sees (\S+)", log))
    assert [found[rank] for rank in sorted(found)] == seen


@pytest.mark.parametrize("launcher", ["torchrun", "srun", prove("deepspeed")])
def test_each_rank_runs_on_cpus_of_its_gpu_s_domain(user: User, launcher: str) -> None:
    """Of two domains with one CPU each; the first GPU is in the second domain."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("one CPU")
    topology = [(f"{cpus[0]}", ["0000:43:00.0"]), (f"{cpus[1]}", ["0000:1b:00.0"])]
    node(user.home / "topology", topology, 0, "nvidia")
    user.site(f"env: [{{set: {{HPC_LAUNCH_TOPOLOGY: {user.home}/topology}}}}]\n")
    program = "import os\nprint('rank', os.environ['RANK'], 'on', *os.sched_getaffinity(0), 'alone')\n"
    keys = {"gpus_per_node": 2, "processes_per_node": 2, "cpus_per_node": 2}
    log = user.completed(job(user, program, launcher, nodes=1, **keys))
    found = dict(re.findall(r"rank (\d) on (\d+) alone", log))
    assert found == {"0": f"{cpus[1]}", "1": f"{cpus[0]}"}
