"""`shell` and `stacks` on this machine: a command as a rank of a run, and where its ranks are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_launch.base.installed import AGENT
from tests.cluster.faults import wait_until
from tests.view.home import Home

RANKS = """
import os, pathlib, threading, time
def load():
    while True:
        time.sleep(0.1)
def hold():
    threading.Event().wait()
pathlib.Path(os.environ["READY"], os.environ["RANK"]).touch()
(load if os.environ["RANK"] == "1" else hold)()
"""
BODY = """say 0 '[rank0]: step 1/100'
export HPC_LAUNCH_RUN_DIR=${{dir%/attempts/*}} HPC_LAUNCH_ATTEMPT_DIR=$dir PYTHONPATH={agent} READY={home}
export HPC_LAUNCH_GUARD=1 COLOUR='a "b" $c'
umask 027
cd {home}
for rank in 0 1 2; do RANK=$rank LOCAL_RANK=$rank {python} ranks.py & done
wait
"""


@pytest.fixture(scope="module")
def running(shared_home: Home) -> Iterator[Home]:
    """A home with a run of three ranks, of which one does not wait for the others."""
    folder = shared_home.path
    (folder / "ranks.py").write_text(RANKS)
    run = shared_home.submit(BODY.format(agent=AGENT, home=folder, python=sys.executable))
    wait_until(lambda: all((folder / rank).exists() for rank in "012"), timeout=60)
    yield shared_home
    shared_home.call("cancel", str(run.path))


def test_a_command_runs_as_the_rank_and_its_exit_code_comes_out(running: Home) -> None:
    code = 'echo "$RANK $COLOUR ${HPC_LAUNCH_GUARD-none}"; pwd; umask; yes | head -n 1; exit 7'
    done = running.call("shell", "@last", "--rank", "2", "--", "bash", "-c", code, code=7)
    assert done.stdout.splitlines() == ['2 a "b" $c none', str(running.path), "0027", "y"]


def test_without_a_command_it_is_a_shell_with_and_without_a_terminal(running: Home) -> None:
    words = running.command("shell", "@last")
    done = subprocess.run(
        words, env=running.environment, input="echo at $RANK\nexit 3\n", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "at 0\n", "")
    code, said = running.answered(b"echo at=$RANK\nexit 5\n", "shell", "@last", "--rank", "1")
    assert (code, "at=1" in said, f"[{running.newest().name} rank 1 " in said) == (5, True, True)


def test_ranks_are_grouped_by_where_they_are_and_go_on(running: Home) -> None:
    shell = running.start("shell", "@last", "--", sys.executable, "-c", "input()", stdin=subprocess.PIPE)
    for _ in range(2):
        lines = running.call("stacks", "@last").stdout.splitlines()
        host = os.uname().nodename
        assert lines[:2] == [f"rank 1 on {host}: the others wait for it", f"  {running.path}/ranks.py:5 in load"]
        assert f"rank 0,2 on {host}" in lines
        assert f"  {running.path}/ranks.py:7 in hold" in lines
    found = json.loads(running.call("stacks", "@last", "--json").stdout)
    assert [(one["ranks"], one["others_wait"], one["state"]) for one in found["groups"]] == [
        ([1], True, "S"),
        ([0, 2], False, "S"),
    ]
    shell.communicate("\n")
    assert (shell.returncode, running.call("status", "@last").stdout.count("RUNNING") > 0) == (0, True)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("shell", "@last", "--rank", "9", "--", "true"), 127, "it has no process of rank 9"),
        (("shell", "@last", "--", "no-such-program"), 127, "no-such-program"),
        (("shell", "@last", "--node", "n7"), 2, "its nodes are n[1-2]"),
        (("shell", "@last", "--role", "server"), 2, "has no role server"),
        (("shell", "@last", "--set", "nodes=2"), 2, "--site and --set need a job file"),
        (("shell", "nothing"), 2, "no run is called 'nothing'"),
        (("shell", "job.yaml", "--rank", "0"), 2, "--node, --rank and --role need a run"),
    ],
)
def test_what_is_not_there_is_said(running: Home, words: tuple[str, ...], code: int, says: str) -> None:
    assert says in running.call(*words, code=code).stderr


def test_completion_of_runs_and_files(running: Home) -> None:
    asked = {"_HPC_LAUNCH_COMPLETE": "bash_complete", "COMP_WORDS": "hpc-launch shell ti", "COMP_CWORD": "2"}
    home = Home(running.path, {**running.environment, **asked})
    assert home.call().stdout == f"file,ti\nplain,{running.newest().name}\n"


@pytest.mark.parametrize("verb", ["shell", "stacks"])
def test_a_run_that_does_not_run_or_is_another_users_is_refused(home: Home, verb: str) -> None:
    run = home.submit("true")
    home.call("watch", "@last")
    error = home.call(verb, "@last", code=2).stderr
    assert error.splitlines() == [
        f"error: {run.name} does not run: COMPLETED",
        f"hint: hpc-launch status {run.name} shows why",
    ]
    run.path.chmod(0o777)
    assert "only its owner can look into its processes" in home.call(verb, "@last", code=2).stderr


def test_a_job_file_opens_a_shell_in_the_jobs_environment(home: Home) -> None:
    (home.path / "venv" / "bin").mkdir(parents=True)
    (home.path / "venv" / "bin" / "activate").write_text("export VIRTUAL_ENV=here\n")
    job = Path(home.path / "job.yaml")
    job.write_text(
        "name: tried\nsite: local\nlauncher: none\ncommand: 'true'\n"
        f"env: {{COLOUR: 'a $b'}}\nenvironment: {{venv: {home.path}/venv}}\n"
    )
    code = 'echo "$COLOUR $VIRTUAL_ENV ${HPC_LAUNCH_ATTEMPT_DIR-none}"; pwd; command -v hpc-launch >/dev/null; exit 6'
    done = home.call("shell", str(job), "--set", "env.COLOUR=$c", "--", "bash", "-c", code, code=6)
    assert done.stdout.splitlines() == ["$c here none", str(home.path)]
