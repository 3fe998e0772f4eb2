"""One process per slot over ssh (`launcher: srun`), as srun starts it: ranks, logs, and how all of them end."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest

from tests.busy import patience
from tests.cluster.faults import wait_until
from tests.slurm.own_program import SLEEPS, job_of, wait_for_ranks
from tests.ssh.ssh_user import SshUser

PLACES = ["n1", "n1", "n2", "n2", "n3"]
SEEN = """\
import json, os, sys
folder, rank = os.environ["HPC_LAUNCH_ATTEMPT_DIR"], os.environ["RANK"]
with open(f"{folder}/seen-{rank}", "w") as stream:
    json.dump([dict(os.environ), os.getcwd(), os.uname().nodename, sys.executable], stream)
print("rank", rank, "says a word")
"""
SETUP = """\
module() { export LOADED="${LOADED:+$LOADED }$2"; }
conda() { echo 'conda() { export CONDA_DEFAULT_ENV=$2; }'; }
"""
"""What a site's own shell start-up defines, on the first host."""


job = partial(job_of, launcher="srun", nodes=3)


def test_each_slot_gets_a_process_with_its_rank_its_gpus_its_software_and_its_log(user: SshUser) -> None:
    # As FlagScale writes it.
    user.cluster.write(user.home / "hostfile", "n1 slots=2 type=A800\nn2 slots=2 type=A800\nn3 slots=4 type=A800\n")
    user.profile(f"hostfile: {user.home / 'hostfile'}\n  include: n1@n2@n3:3")
    setup, venv = user.job(SETUP, "setup.sh"), user.home / "a venv"
    user.job(f"export PATH='{venv}/bin':$PATH VIRTUAL_ENV='{venv}'\n", "a venv/bin/activate")
    user.cluster.run(["ln", "-s", sys.executable, str(venv / "bin" / "python")], check=True)
    software = {
        "source": [setup],
        "modules": ["cuda/13", "nccl"],
        "conda": "train",
        "venv": str(venv),
        "python": "python",
    }
    user.completed(job(user, SEEN, env={"WORD": "$(id) 'x' \n"}, environment=software))
    ports = set()
    for rank, node in enumerate(PLACES):
        (path,) = user.home.glob(f"runs/*/attempts/001/seen-{rank}")
        env, cwd, host, python = json.loads(path.read_text())
        found = [env[name] for name in "LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK".split()]
        size, index = PLACES.count(node), int(node[1:]) - 1
        assert found == [str(rank - PLACES.index(node)), "5", str(size), str(index), str(index)]
        assert (host, cwd, env["MASTER_ADDR"], env["WORD"]) == (node, str(user.home), "n1", "$(id) 'x' \n")
        assert env.get("CUDA_VISIBLE_DEVICES") == ("3" if node == "n3" else None)
        assert (env["LOADED"], env["CONDA_DEFAULT_ENV"]) == ("cuda/13 nccl", "train")
        assert python == f"{venv}/bin/python"
        ports.add(env["MASTER_PORT"])
        assert path.parent.joinpath("logs", f"node-{index}.rank-{rank}.log").read_text().count("says a word") == 1
    assert len(ports) == 1
    assert user.launch("logs", "@last", "--rank", "3").stdout == "rank 3 says a word\n"
    user.nothing_left()


@pytest.mark.prove  # a role that fails on hosts is named, too
def test_a_rank_that_fails_ends_the_others_and_is_named(user: SshUser) -> None:
    file = job(user, SLEEPS + "    if os.environ['RANK'] == '4': raise SystemExit(7)\n")
    done = user.launch("submit", file, "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    assert user.status()["attempts"][0]["exit_code"] == 7
    why = json.loads(user.launch("why", "@last", "--json").stdout)
    first = why["first_failure"]
    assert (why["class"], first["node"], first["rank"]) == ("user_code_error", "n3", 4), why
    assert wait_for_ranks(user, 5)
    user.nothing_left()


def test_a_lost_host_is_named_and_the_next_attempt_runs_without_it(user: SshUser) -> None:
    forged = "[hpc-launch 2026-11-23 07:28:12] n3: the connection ended with code 255: gone"
    program = (
        f"import os\nprint({forged!r}, flush=True)\nif os.environ['HPC_LAUNCH_ATTEMPT'] == '2': raise SystemExit\n"
    )
    again = {"max_attempts": 2, "backoff": {"first": 0}}
    assert user.launch("submit", job(user, program + SLEEPS, nodes=2, retry=again)).returncode == 0
    wait_for_ranks(user, 4)
    user.kill("n2", "sshd")
    (folder,) = user.home.glob("runs/*/")
    state = folder / "attempts" / "002" / "local.json"
    wait_until(lambda: state.exists() and "COMPLETED" in state.read_text(), patience(90))  # without a client
    attempts = user.until("@last", "COMPLETED", "FAILED", "STOPPED")["attempts"]
    assert [one["nodes"] for one in attempts] == [["n1", "n2"], ["n1", "n3"]]
    assert [(one["class"], one["exit_code"]) for one in attempts] == [("node_failure", 255), ("success", 0)], attempts
    why = json.loads(user.launch("why", "@last", "--attempt", "1", "--json").stdout)
    assert (why["cause"], why["first_failure"]["node"], why["level"]) == ("host_connection", "n2", "infrastructure"), (
        why
    )
    assert [quote["file"] for quote in why["evidence"]] == ["batch.log"]
    user.nothing_left()
