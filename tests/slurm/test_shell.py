"""`shell` and `stacks` on two nodes of Slurm: in a job that runs, and in an allocation for a job file."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.marks import prove
from tests.slurm.own_program import job_of, wait_for_ranks
from tests.slurm.user import User

DIFFERS = """\
import os, time
stop = os.environ["HPC_LAUNCH_STOP_FILE"]
def late():
    while not os.path.exists(stop): time.sleep(0.5)
def others():
    while not os.path.exists(stop): time.sleep(0.5)
open(os.environ["HPC_LAUNCH_ATTEMPT_DIR"] + "/began-" + os.environ["RANK"], "w").close()
(late if os.environ["RANK"] == "3" else others)()
"""


def job(user: User) -> str:
    return job_of(user, DIFFERS, "srun", processes_per_node=2, env={"HELLO": "a $b"})


def test_a_shell_and_the_stacks_of_a_job_that_goes_on(user: User) -> None:
    user.submit(job(user))
    wait_for_ranks(user, 4)
    code = 'echo "$RANK $SLURM_PROCID $HELLO"; uname -n; pwd; exit 9'
    done = user.launch("shell", "@last", "--rank", "3", "--", "sh", "-c", code)
    first, second = user.nodes()
    assert (done.returncode, done.stdout.splitlines()) == (9, ["3 3 a $b", second, str(user.home)]), done.stderr
    done = user.launch(
        "shell", "@last", "--node", second, "--", sys.executable, "-c", "print(__import__('os').environ['RANK'])"
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    typed = ["script", "-qec", "hpc-launch shell @last -- tty", "/dev/null"]
    assert "/dev/pts/" in user.cluster.run(typed, cwd=user.home, env=user.env).stdout
    lines = user.launch("stacks", "@last").stdout.splitlines()
    assert lines[0] == f"rank 3 on {second}: the others wait for it"
    assert lines[1].endswith("a program.py:4 in late")
    found = json.loads(user.launch("stacks", "@last", "--json").stdout)
    groups = [(one["ranks"], one["hosts"], one["frames"][0]["call"]) for one in found["groups"]]
    assert (groups, found["not_seen"]) == ([([3], [second], "late"), ([0, 1, 2], [first, second], "others")], [])
    next(user.home.glob("runs/*/attempts/001")).joinpath("stop").touch()
    status = user.until("@last", "COMPLETED", "FAILED", "STOPPED")
    assert (status["state"], status["attempts"][0]["exit_code"]) == ("COMPLETED", 0)


@pytest.mark.parametrize(
    ("access", "says"),
    [
        prove("node_access: none", "lets nobody onto the nodes of a job"),
        prove("version: '20.02'", "Slurm 20.02 of site testcluster has no `srun --overlap`"),
    ],
)
def test_what_the_site_does_not_allow_is_said(user: User, access: str, says: str) -> None:
    user.site("", ("scheduler: slurm", f"scheduler: {{type: slurm, {access}}}"))
    user.submit(job(user))
    wait_for_ranks(user, 4)
    done = user.launch("shell", "@last", "--", "true")
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    assert user.launch("cancel", "@last").returncode == 0


def test_an_allocation_with_the_resources_of_a_job_in_which_it_runs(user: User) -> None:
    keys: dict[str, Any] = {"processes_per_node": 2, "env": {"HELLO": "a $b"}, "checkpoint": {"signal_before": "1m"}}
    file = job_of(user, "import os\nprint('rank', os.environ['RANK'], os.environ['HELLO'])\n", "srun", **keys)
    code = f'echo "$HELLO on $(uname -n) of $SLURM_JOB_NODELIST"; hpc-launch run {file} && exit 6'
    done = user.launch("shell", file, "--", "bash", "-c", code)
    assert done.returncode == 6, done.stdout + done.stderr
    nodes = user.nodes()
    assert f"a $b on {nodes[0]} of " in done.stdout
    log = user.launch("logs", "@last").stdout
    assert sorted(line.split("rank ")[-1] for line in log.splitlines() if "a $b" in line) == [
        f"{n} a $b" for n in range(4)
    ]
