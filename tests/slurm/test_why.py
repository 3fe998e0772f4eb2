"""Faults on a real Slurm, and what `why` says of them: who was first, whatever the job's own state says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.slurm.user import User

JOB = "name: {}\nlauncher: srun\nnodes: 2\nprocesses_per_node: 1\nretry: {{max_attempts: 1}}\ncommand: sh -c '{}'\n"


def why(user: User, name: str, body: str) -> dict[str, Any]:
    user.launch("submit", user.job(JOB.format(name, body)), "--wait")
    done = user.launch("why", name, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_rank_ends_with_a_code_and_the_others_are_ended(user: User) -> None:
    """The step's code is that of the bystander that srun ended."""
    found = why(user, "seven", 'if [ "$RANK" = 1 ]; then exit 7; fi; sleep 60')
    assert (found["class"], found["first_failure"]["rank"]) == ("user_code_error", 1), found
    assert "exit code 7" in found["evidence"][-1]["text"]


@pytest.mark.prove
def test_one_rank_crashes(user: User) -> None:
    found = why(user, "crash", 'if [ "$RANK" = 1 ]; then kill -SEGV $$; fi; sleep 60')
    assert (found["class"], found["verdict"], found["first_failure"]["rank"]) == ("segfault_or_abort", "STOP", 1), found


def test_one_rank_is_killed_from_outside(user: User) -> None:
    """Nothing counted it as a kill for memory, so it is none."""
    found = why(user, "killed", 'if [ "$RANK" = 1 ]; then kill -KILL $$; fi; sleep 60')
    assert (found["class"], found["first_failure"]["rank"]) == ("segfault_or_abort", 1), found
    assert "retry; something outside" in found["advice"]
    assert (found["verdict"], "retry.max_attempts is 1" in found["advice"]) == ("STOP", True), found


def test_a_program_that_is_not_there(user: User) -> None:
    found = why(user, "nowhere", "no-such-program-of-anybody")
    assert (found["class"], found["verdict"]) == ("config_error", "STOP"), found
