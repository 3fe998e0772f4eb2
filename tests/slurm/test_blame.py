"""Who is to blame for the end of a job on a real Slurm: the node that failed, a person, or the node without a venv."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.faults import PATIENCE_S, wait_until
from tests.marks import prove
from tests.slurm.user import User

FIRST = '[ "$HPC_LAUNCH_ATTEMPT" -gt 1 ] || exec sleep 300'


def job(command: list[str], **more: str) -> str:
    keys = {"retry": "{backoff: 1s}", "cpus_per_node": "1", **more}
    lines = ["name: blame", "launcher: srun", f"command: {json.dumps(command)}"]
    return "\n".join([*lines, *(f"{key}: {value}" for key, value in keys.items()), ""])


def begun(user: User, text: str) -> dict[str, Any]:
    """A submitted run whose step has started."""
    run = user.submit(text)
    logs = Path(run["folder"]) / "attempts" / "001" / "logs"
    wait_until(lambda: any(logs.glob("node-*.log")), explain=lambda: f"{user.status(run['run'])}")
    time.sleep(1)
    return run


def why(user: User, run: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(user.launch("why", run, "--attempt", "1", "--json").stdout)
    return answer


def test_a_killed_batch_shell_is_followed_by_another_attempt(user: User) -> None:
    run = begun(user, job(["sh", "-c", FIRST]))
    words = ["scancel", "--signal=KILL", "--batch", run["job_id"]]
    assert user.cluster.run(words, user="root").returncode == 0

    status = user.until(run["run"], "COMPLETED", "FAILED", "STOPPED")

    first = status["attempts"][0]
    assert (status["state"], first["class"], first["verdict"]) == ("COMPLETED", "segfault_or_abort", "RETRY"), status


@pytest.mark.parametrize("nodes", [prove(1), 2])
def test_a_cancelled_step_is_a_cancelled_run(user: User, nodes: int) -> None:
    run = begun(user, job(["sh", "-c", FIRST], nodes=str(nodes)))
    assert user.cluster.run(["scancel", f"{run['job_id']}.0"]).returncode == 0

    status = user.until(run["run"], "COMPLETED", "FAILED", "STOPPED", "CANCELLED")

    (only,) = status["attempts"]
    assert (only["class"], only["verdict"]) == ("cancelled_by_user", "STOP"), status


def test_a_rank_that_is_killed_is_no_cancelled_step(user: User) -> None:
    script = 'if [ "$HPC_LAUNCH_ATTEMPT$RANK" = 11 ]; then kill -9 $$; fi; ' + FIRST
    run = user.submit(job(["sh", "-c", script], nodes="2"))

    status = user.until(run["run"], "COMPLETED", "FAILED", "STOPPED", "CANCELLED")

    assert status["state"] == "COMPLETED", status
    assert status["attempts"][0]["class"] == "segfault_or_abort", status


def test_a_node_without_the_interpreter_is_named(user: User) -> None:
    venv = f"/tmp/venv-{user.home.name}"
    make = ["python3", "-m", "venv", "--without-pip", venv]
    assert user.cluster.run(make).returncode == 0
    for node in user.cluster.nodes:
        assert user.cluster.node_exec(node, make, user=user.cluster.user).returncode == 0
    bad = user.cluster.nodes[2]
    user.cluster.node_exec(bad, ["rm", "-r", venv])
    command, nodes = ["python3", "-c", "import sys; print(sys.prefix)"], str(len(user.cluster.nodes))
    text = job(command, nodes=nodes, retry="1", environment=f"{{venv: {venv}}}")

    run = user.submit(text)
    status = user.until(run["run"], "COMPLETED", "FAILED", "STOPPED")

    found = why(user, run["run"])
    assert (status["state"], found["first_failure"]["node"]) == ("FAILED", bad), found
    assert any(f"{bad}: {venv}/bin/python3 is missing" in quote["text"] for quote in found["evidence"]), found
    assert json.loads(user.launch("nodes", "list", "--json").stdout) == []


@pytest.mark.slow
def test_a_node_that_reboots_within_seconds_is_blamed_and_not_the_other(user_in_trouble: User) -> None:
    user = user_in_trouble
    run = begun(user, job(["sh", "-c", FIRST], nodes="2"))
    node = user.nodes()[1]
    waiting = user.popen("watch", run["run"])
    user.cluster.kill_node(node)
    time.sleep(10)
    user.cluster.revive_node(node)

    out, err = waiting.communicate(timeout=PATIENCE_S)

    status, found = user.status(run["run"]), why(user, run["run"])
    assert waiting.returncode == 0, (out + err, found)
    assert (found["class"], found["first_failure"]["node"]) == ("node_failure", node), found
    assert [one["node"] for one in json.loads(user.launch("nodes", "list", "--json").stdout)] == [node]
    assert node not in status["attempts"][1]["nodes"]
