"""Faults on a real Slurm, and what `why` says of them: who was first, whatever the job's own state says."""

from __future__ import annotations

import json
from typing import Any

from tests.slurm.user import User

JOB = "name: {}\nlauncher: srun\nnodes: 2\nprocesses_per_node: 1\nretry: {{max_attempts: 1}}\ncommand: sh -c '{}'\n"


def why(user: User, name: str, body: str) -> dict[str, Any]:
    job = body if body.startswith("name:") else JOB.format(name, body)
    user.launch("submit", user.job(job), "--wait")
    done = user.launch("why", name, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_rank_ends_with_a_code_and_the_others_are_ended(user: User) -> None:
    """The step's code is that of the bystander that srun ended."""
    found = why(user, "seven", 'if [ "$RANK" = 1 ]; then exit 7; fi; sleep 60')
    assert (found["class"], found["first_failure"]["rank"]) == ("user_code_error", 1), found
    assert "exit code 7" in found["evidence"][-1]["text"]


def test_one_rank_is_killed_from_outside(user: User) -> None:
    """Nothing counted it as a kill for memory, so it is none."""
    found = why(user, "killed", 'if [ "$RANK" = 1 ]; then kill -KILL $$; fi; sleep 60')
    assert (found["class"], found["first_failure"]["rank"]) == ("segfault_or_abort", 1), found
    assert "retry; something outside" in found["advice"]
    assert (found["verdict"], "retry.max_attempts is 1" in found["advice"]) == ("STOP", True), found


def test_a_program_that_is_not_there(user: User) -> None:
    found = why(user, "nowhere", "no-such-program-of-anybody")
    assert (found["class"], found["verdict"]) == ("config_error", "STOP"), found


def test_a_node_without_the_interpreter_is_named(user: User) -> None:
    venv = f"/tmp/venv-{user.home.name}"
    make = ["python3", "-m", "venv", "--without-pip", venv]
    assert user.cluster.run(make).returncode == 0
    for node in user.cluster.nodes:
        assert user.cluster.node_exec(node, make, user=user.cluster.user).returncode == 0
    bad = user.cluster.nodes[2]
    user.cluster.node_exec(bad, ["rm", "-r", venv])
    job = f"name: no-venv\nlauncher: srun\nnodes: {len(user.cluster.nodes)}\ncpus_per_node: 1\nretry: 1\n"
    command = "command: [python3, -c, 'import sys; print(sys.prefix)']\n"

    found = why(user, "no-venv", f"{job}{command}environment: {{venv: {venv}}}\n")

    assert found["first_failure"]["node"] == bad, found
    assert any(f"{bad}: {venv}/bin/python3 is missing" in quote["text"] for quote in found["evidence"]), found
    assert json.loads(user.launch("nodes", "list", "--json").stdout) == []
