"""Several programs in one job, on real nodes: order, ends, who is named, what is left."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.faults import wait_until
from tests.marks import prove
from tests.slurm.user import User

SERVES = "python3 -m http.server $ROLE_PORT"
FLAKY = """\
import http.server, os, time
begin = time.time()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if time.time() - begin < 3 else 200)
        self.end_headers()
http.server.HTTPServer(("", int(os.environ["ROLE_PORT"])), Handler).serve_forever()
"""
"""A server that is there at once, and ready after three seconds."""


def roles(user: User, serve: str, client: str, **keys: Any) -> str:
    """A server on a node of its own, and a client that ends the job, both as text of bash."""
    server = {"command": ["bash", "-c", serve], "ready": {"http": "/", "within": "60s"}, "grace": "3s"}
    train = {"nodes": "rest", "command": ["bash", "-c", client], "after": "server", "ends": "job", "grace": "3s"}
    wanted = {"name": "pair", "nodes": 2, "retry": {"max_attempts": 1}, "cpus_per_node": 1, "preflight": "off"}
    both = {"server": {**server, **keys.pop("server", {})}, "train": {**train, **keys.pop("train", {})}}
    return user.job(yaml.safe_dump({**wanted, "roles": both, **keys}))


def why(user: User) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(user.launch("why", "@last", "--json").stdout)
    return answer


def states(user: User) -> dict[str, dict[str, Any]]:
    """The roles of the newest run by name."""
    return {one["name"]: one for one in user.status().get("roles", [])}


def wait_for(user: User, name: str, state: str) -> dict[str, Any]:
    """A role, once it is in a state."""
    wait_until(lambda: states(user).get(name, {}).get("state") == state, explain=lambda: str(user.status()), every=1)
    return states(user)[name]


def attempt_of(user: User) -> Path:
    """The folder of the newest run's newest attempt."""
    return max(user.home.glob("runs/*/attempts/*"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize(
    ("serve", "client", "code", "first", "said"),
    [
        (SERVES, "curl -sf $ROLE_SERVER_URL && sleep 1", 0, None, ""),
        prove(SERVES, "sleep 1; exit 7", 7, "train", "exit code 7"),
        prove(f"{SERVES} & sleep 3; exit 1", "sleep 120", 1, "server", "exit code 1"),
        (f"{SERVES} & sleep 3; exit 0", "sleep 120", 1, "server", "exit code 0 on {node} while the job needs it"),
        prove("exit 3", "sleep 120", 3, "server", "exit code 3"),
        prove(f"{SERVES} & sleep 4; exit 4", "sleep 4.7; exit 5", 4, "server", "exit code 4"),
    ],
    ids=["good", "client-fails", "server-fails", "server-leaves", "server-never-starts", "both-fail"],
)
def test_the_first_role_that_fails_is_named(  # noqa: PLR0917 - the columns of the table
    user: User, serve: str, client: str, code: int, first: str | None, said: str
) -> None:
    done = user.launch("submit", roles(user, serve, client), "--wait")
    user.nothing_left()
    found, known = why(user), states(user)
    assert user.status()["attempts"][0]["exit_code"] == code
    assert (done.returncode == 0) is (first is None)
    assert found["first_failure"].get("role") == first
    assert known["server"]["nodes"] != known["train"]["nodes"]
    if first is not None:
        node = known[first]["nodes"][0]
        assert found["first_failure"]["node"] == node
        assert said.format(node=node) in " ".join(found["also"])


def test_a_role_that_is_never_ready_is_named_with_its_last_answer(user: User) -> None:
    job = roles(user, "sleep 100", "sleep 100", server={"ready": {"http": "/health", "within": "5s"}})
    user.launch("submit", job, "--wait")
    found = why(user)
    assert (found["class"], found["cause"]) == ("hang_no_progress", "role_not_ready")
    assert re.search(r"role server: not ready within 5 s: GET /health: .*refused", " ".join(found["also"]))


def test_a_server_that_is_not_ready_yet_is_waited_for_and_restarted_in_its_place(user: User) -> None:
    user.cluster.write(user.home / "flaky.py", FLAKY)
    # Twice it ends, and its client, which asks on, finds it again at the same address.
    serve = (
        "python3 flaky.py & sleep 6; test -e third || { test -e second && touch third; touch second; exit 9; }; wait"
    )
    asks = "for _ in {1..60}; do curl -sf $ROLE_SERVER_URL && echo answered; sleep 0.5; test -e third && break; done"
    asks += "; for _ in {1..300}; do curl -sf $ROLE_SERVER_URL && exit; sleep 0.2; done; exit 1"
    log = user.completed(roles(user, serve, asks, server={"restart": 2}))
    known = states(user)["server"]
    assert known["restarts"] == 2
    assert "answered" in log
    said = (attempt_of(user) / "batch.log").read_text()
    assert said.index("role server is ready") < said.index("role train starts")
    assert len(list((attempt_of(user) / "roles").glob("server.ended-*"))) == 2


@pytest.mark.prove  # the roles on hosts leave nothing, too
def test_a_cancelled_job_leaves_nothing(user: User) -> None:
    run = user.submit(roles(user, "trap '' TERM; setsid sleep 300 & " + SERVES, "setsid sleep 300 & sleep 300"))
    wait_for(user, "train", "ready")
    user.launch("cancel", "@last")
    assert user.until("@last", "CANCELLED")["run"] == run["run"]
    user.nothing_left()


@pytest.mark.prove
def test_nothing_is_left_after_the_batch_shell_was_killed(user: User) -> None:
    run = user.submit(roles(user, "setsid sleep 300 & " + SERVES, "sleep 300"))
    wait_for(user, "train", "ready")
    user.cluster.run(["scancel", "--batch", "--signal=KILL", run["job_id"]], check=True)
    assert user.until("@last", "FAILED", "CANCELLED", "STOPPED")
    user.nothing_left()


def test_jobs_share_a_node_and_roles_their_environment(user: User) -> None:
    """Each job reaches its own server; a role has its own variables, and not those that it does without."""
    serves = "cd $(mktemp -d); echo $HPC_LAUNCH_RUN_NAME >who; env | sort; exec " + SERVES
    client = "echo $ROLE_SERVER_PORT; curl -sf $ROLE_SERVER_URL/who; env | grep -c SECRET_OF; sleep 5"
    own = {"env": {"SECRET_OF_SERVER": "1"}, "unset": ["SLURM_JOB_PARTITION"], "ports": ["admin"]}
    job = roles(user, serves, client, nodes=1, server=own, train={"beside": "server", "nodes": 1})
    first, second = user.submit(job), user.submit(job)
    ports = set()
    for run in (first, second):
        assert user.until(run["run"], "COMPLETED", "FAILED")["state"] == "COMPLETED"
        log = user.launch("logs", run["run"]).stdout
        assert run["run"] in log
        assert "temporarily disabled" not in log
        ports.add(re.findall(r"\| (\d{5})$", log, re.MULTILINE)[0])
        seen = user.launch("logs", run["run"], "--role", "server").stdout
        assert "SECRET_OF_SERVER=1" in seen
        assert "SLURM_JOB_PARTITION" not in seen
        assert re.search(r"\| ROLE_PORT_ADMIN=\d{5}$", seen, re.MULTILINE)
        assert not re.search(r"\| (SERVER|TRAIN)_(PORT|HOST|URL)=", seen)
    assert len(ports) == 2


@pytest.mark.prove
def test_the_warning_reaches_the_training_while_its_server_runs_and_the_run_continues(user: User) -> None:
    program = (
        "import os, time, urllib.request as ask\n"
        "folder = os.environ['HPC_LAUNCH_RUN_DIR'] + '/checkpoints'\n"
        "os.makedirs(folder, exist_ok=True)\n"
        "first = int(os.environ.get('HPC_LAUNCH_RESUME_STEP') or 0)\n"
        "for step in range(first + 1, 41):\n"
        "    time.sleep(0.5)\n"
        "    print(f'step {step}/40', ask.urlopen(os.environ['ROLE_SERVER_URL']).status, flush=True)\n"
        "    if os.path.exists(os.environ['HPC_LAUNCH_STOP_FILE']) or step == 40:\n"
        "        open(f'{folder}/step-{step}', 'w').write('x')\n"
        "        break\n"
    )
    user.cluster.write(user.home / "train.py", program)
    train = {
        "command": ["python3", "train.py"],
        "progress": {"step": r"step (\d+)/(\d+)"},
        "checkpoint": {"dir": "${run.dir}/checkpoints", "pattern": r"step-(\d+)", "signal_before": "60s"},
    }
    run = user.submit(roles(user, SERVES, "", train=train, retry={"max_attempts": 2}))
    wait_until(lambda: (user.status()["progress"]["step"] or 0) > 2, explain=lambda: str(user.status()), every=1)
    user.cluster.run(["scancel", "--batch", "--signal=USR1", run["job_id"]], check=True)
    status = user.until("@last", "COMPLETED", "FAILED", "STOPPED")
    assert status["state"] == "COMPLETED", status
    assert [one["verdict"] for one in status["attempts"]] == ["CONTINUE", "NONE"]
    assert status["progress"]["step"] == 40
    server = {one: user.launch("logs", "@last", "--role", "server", "--attempt", one).stdout for one in ("1", "2")}
    assert server["1"] != server["2"]
    assert all('"GET / HTTP/1.1" 200' in log for log in server.values())
    user.nothing_left()


@pytest.mark.prove
def test_the_role_of_a_lost_node_is_named(user_in_trouble: User) -> None:
    user = user_in_trouble
    user.submit(roles(user, SERVES, "sleep 300"))
    (node,) = wait_for(user, "train", "ready")["nodes"]
    user.cluster.kill_node(node)
    assert user.until("@last", "FAILED", "STOPPED")
    first = why(user)["first_failure"]
    assert (first["role"], first["node"]) == ("train", node)


def test_roles_on_a_node_get_different_gpus_and_their_steps_do_not_wait(user: User) -> None:
    """Slurm gives each step all GPUs of the job there, as the steps overlap."""
    seen = "echo has $CUDA_VISIBLE_DEVICES; "
    beside = {"beside": "server", "nodes": 1, "gpus": 1}
    job = roles(
        user, seen + "exec " + SERVES, seen + "sleep 1", nodes=1, gpus_per_node=4, server={"gpus": 3}, train=beside
    )
    train = user.completed(job)
    server = user.launch("logs", "@last", "--role", "server").stdout
    found = [re.findall(r"has ([\d,]+)$", log, re.MULTILINE) for log in (server, train)]
    assert found == [["0,1,2"], ["3"]]
    said = (attempt_of(user) / "batch.log").read_text()
    assert "temporarily disabled" not in said + server + train


def test_points_of_a_sweep_reach_their_own_server(user: User) -> None:
    serves = "cd $(mktemp -d); echo $HPC_LAUNCH_RUN_NAME >who; exec " + SERVES
    sweep = {"sweep": {"grid": {"env.POINT": ["a", "b"]}}}
    job = roles(user, serves, "curl -sf $ROLE_SERVER_URL/who; echo $HPC_LAUNCH_RUN_NAME", **sweep)
    done = user.launch("submit", job, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    for point in ("0", "1"):
        lines = user.launch("logs", f"@last/{point}").stdout.split()
        assert len([line for line in lines if line.endswith(f".{point}")]) == 2
