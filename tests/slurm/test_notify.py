"""Messages about runs on a cluster, with nobody who looks: from the job, its end hook and the points of a sweep."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.faults import wait_until
from tests.slurm.user import User

pytestmark = pytest.mark.cluster

JOB = """
name: told
launcher: none
time: 5
cpus_per_node: 1
hang: false
progress: {step: 'step (\\d+)/(\\d+)'}
"""


def messages(user: User) -> list[dict[str, Any]]:
    found = user.cluster.run(["sh", "-c", f"cat {user.home}/messages 2>/dev/null || true"]).stdout
    return [json.loads(line) for line in found.splitlines()]


@pytest.mark.prove
def test_a_failed_run_and_a_sweep_tell_once(user: User) -> None:
    user.job("HOOK=http://127.0.0.1:9/token-in-the-address\n", "config/hpc-launch/secrets.env")
    user.cluster.run(["chmod", "600", str(user.home / "config/hpc-launch/secrets.env")], check=True)
    tell = json.dumps(["sh", "-c", f"cat >>{user.home}/messages"])
    notify = f"notify: {{webhook: {{secret: HOOK, format: ntfy}}, command: {tell}, mail: me@example.org}}\n"
    fails = "echo HOOK is $${HOOK-unset}; echo \"ModuleNotFoundError: No module named 'lib'\"; sleep 1; exit 1"
    run = user.submit(f"{JOB}command: [sh, -c, {json.dumps(fails)}]\n{notify}")

    wait_until(lambda: len(messages(user)) >= 2, explain=lambda: str(messages(user)))

    start, stop = sorted(messages(user), key=lambda one: float(one["time"]))
    assert (start["event"], start["run"], start["job_id"]) == ("start", run["run"], run["job_id"])
    assert (stop["event"], stop["state"], stop["failure_class"]) == ("stop", "FAILED", "import_error")
    assert "HOOK is unset" in user.launch("logs", run["run"]).stdout
    user.until(run["run"], "FAILED", "STOPPED")
    user.launch("why", run["run"])
    shown = user.launch("status", run["run"]).stdout
    assert "did not reach the webhook: connection refused" in shown
    assert user.cluster.run(["grep", "-r", "token-in-the-address", run["folder"]]).returncode == 1
    assert len(messages(user)) == 2

    def mails() -> list[str]:
        path = user.cluster.layout.mails
        return [line for line in path.read_text().splitlines() if f"Job_id={run['job_id']} " in line]

    wait_until(lambda: len(mails()) >= 2)
    assert [next(word for word in ("Began", "Failed", "") if word in line) for line in mails()] == ["Began", "Failed"]
    assert all(line.endswith(" me@example.org") for line in mails())

    run = user.submit(f"{JOB}command: [sleep, '100']\n{notify}")
    user.until(run["run"], "STARTING", "RUNNING")
    assert user.launch("cancel", run["run"]).returncode == 0
    wait_until(lambda: len(messages(user)) >= 4, explain=lambda: str(messages(user)))
    end = messages(user)[-1]
    assert (end["event"], end["run"], end["state"]) == ("end", run["run"], "CANCELLED")

    words = [["sh", "-c", "exit $0", code] for code in ("0", "3")]
    sweep = user.submit(f"{JOB}sweep: {{grid: {{command: {json.dumps(words)}}}}}\nretry: 1\n{notify}")["run"]

    wait_until(lambda: len(messages(user)) >= 6, explain=lambda: str(messages(user)))

    user.launch("status", sweep)
    of_sweep = [one for one in messages(user) if one["run"] == sweep]
    assert sorted(one["event"] for one in of_sweep) == ["end", "start"]
    (end,) = (one for one in of_sweep if one["event"] == "end")
    assert end["points"] == "1 COMPLETED, 1 FAILED"
    assert len(messages(user)) == 6
