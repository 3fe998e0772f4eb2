"""A job with roles: its start, what a restart costs and the role that failed first, wherever a person looks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.performance.run_times import run_times
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.status.startup_summary import StartupReader
from hpc_launch.view.run_details import details
from hpc_launch.view.state_text import one_line
from tests.here import launch
from tests.view.samples import attempt, status

BEGAN = 1_700_000_000


def role(name: str, state: str = "ready", **known: Any) -> dict[str, Any]:
    """What roles.json says of a role; times are seconds after the job began."""
    times: dict[str, Any] = {
        key: BEGAN + known[key] for key in ("started", "first_ready", "ready_since", "since") if key in known
    }
    outages = [[BEGAN + begin, BEGAN + end] for begin, end in known.pop("outages", [])]
    place = {"name": name, "role": name, "nodes": [f"n-{name}"], "ends_job": name == "train", "url": f"http://{name}"}
    return {"since": BEGAN, "restarts": len(outages), **place, **known, **times, "state": state, "outages": outages}


def run_of(folder: Path, *roles: dict[str, Any], steps: tuple[float, ...] = (), **failed: Any) -> RunFolder:
    """A run whose training shows a step at each of these times."""
    run = RunFolder(folder / "run")
    one, notes, log = run.attempt(1), [], ""
    (one.path / "logs").mkdir(parents=True)
    main = one.path / "roles" / "main"
    for name in ("agent", "logs"):
        (main / name).mkdir(parents=True)
    for number, at in enumerate(steps, 1):
        log += f"step {number}\n"
        notes.append({"event": "output", "t": BEGAN + at, "size": len(log), "written": BEGAN + at})
    (main / "logs" / "node-0.log").write_text(log)
    (main / "agent" / "node-0.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    one.plan.write_text(json.dumps({"progress": {"step": r"step (\d+)"}, "phases": True}))
    one.claim.write_text("7")
    one.start.write_text(json.dumps({"job_id": "7", "started": BEGAN, "phase": "training", "ended": BEGAN + 2}))
    one.roles.write_text(json.dumps({"roles": roles, "failed": failed or None}))
    run.info.write_text(json.dumps({"run": "run", "created": BEGAN}))
    return run


def shown(run: RunFolder, now: float, state: str = "RUNNING") -> tuple[str, dict[str, float], dict[str, float]]:
    """What `status` and one line say, and the seconds by category and by phase of the start."""
    files = Reader().read(run.attempt(1))
    one = attempt(run.attempt(1).path, job_id="7", started=BEGAN, state=state)
    known = status(
        run="run", folder=run.path, state=state, attempts=(one,), roles=files.roles, startup=StartupReader().read(files)
    )
    account = run_times(known, BEGAN + now).account
    seconds: dict[str, float] = {name: time for name, time in account.by_category().items() if time}
    return "\n".join([*details(known, now=BEGAN + now), one_line(known, BEGAN + now)]), seconds, account.phases()


def test_while_roles_start_it_is_told_which_and_what_they_answer(tmp_path: Path) -> None:
    late = role("server", "starting", started=4, since=4, waits_for="GET /health: status 503")
    text, seconds, phases = shown(run_of(tmp_path, role("train", "waiting"), late), 20)
    assert "phase     roles: 0 of 2 ready; server starting, GET /health: status 503 (16 s)" in text
    assert seconds == {"starting": 20}
    assert phases == {"preparation": 2, "roles": 18}


def test_the_time_until_all_roles_are_ready_is_a_phase_of_the_start(tmp_path: Path) -> None:
    server = role("server", started=3, first_ready=33, ready_since=33)
    train = role("train", started=33, first_ready=34, ready_since=34)
    text, seconds, phases = shown(run_of(tmp_path, train, server, steps=(40, 41, 42)), 42)
    assert "all were ready 34 s after the job began, train last" in text
    assert "its start took 30 s" in text
    assert phases["roles"] == 32
    assert seconds["starting"] == 40


@pytest.mark.parametrize(
    ("steps", "cost"),
    [
        (range(10, 60), 0.0),  # the training made a step each second all the same
        ((*range(10, 21), *range(40, 60)), 20.0),
        ((*range(10, 31), *range(40, 60)), 10.0),  # it had something left to do
        ((*range(10, 21), *range(35, 60)), 15.0),  # the server answered before it was known to be ready
    ],
)
def test_a_restart_costs_the_time_without_a_step(tmp_path: Path, steps: tuple[float, ...], cost: float) -> None:
    server = role("server", started=3, first_ready=8, ready_since=40, outages=[(20, 40)])
    train = role("train", started=8, first_ready=9, ready_since=9)
    text, seconds, _ = shown(run_of(tmp_path, train, server, steps=tuple(steps)), 60)
    assert seconds.get("restarting", 0.0) == pytest.approx(cost, abs=1.01)
    assert "server ready restarted once" in text
    assert sum(seconds.values()) == pytest.approx(60)


def test_the_role_that_failed_first_is_told(tmp_path: Path) -> None:
    server = role("server", "ended", started=3, first_ready=8, ready_since=8, exit_code=5)
    train = role("train", "ended", started=8, first_ready=9, ready_since=9, exit_code=143)
    run = run_of(tmp_path, train, server, name="server", role="server", node="n-server", exit_code=5, why="ended")
    text, _, _ = shown(run, 60, "FAILED")
    assert "server  ended with exit code 5, failed first, on n-server" in text
    assert "train   ended with exit code 143" in text


SERVER = """\
import http.server, os, sys, time
folder = os.environ["HPC_LAUNCH_RUN_DIR"]
again = os.path.exists(folder + "/second")
open(folder + "/second", "a").close()
time.sleep(1.2)
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        Handler.asked += self.path == "/step"
http.server.ThreadingHTTPServer.allow_reuse_address = True
server = http.server.HTTPServer(("127.0.0.1", int(os.environ["ROLE_PORT"])), Handler)
while Handler.asked < 5:
    server.handle_request()
print("RuntimeError: out of tokens", file=sys.stderr, flush=True)
sys.exit(5 if again else 9)
"""
"""It needs 1.2 s to start, ends with code 9 after five steps, and with code 5 after five more."""
TRAIN = """\
import os, time, urllib.request
for step in range(1, 100):
    while True:
        try:
            urllib.request.urlopen(os.environ["ROLE_SERVER_URL"] + "/step", timeout=5)
            break
        except OSError:
            time.sleep(0.05)
    print(f"step {step}/100", flush=True)
    time.sleep(0.1)
"""


@pytest.mark.prove
def test_the_start_a_restart_and_the_first_failure_are_told(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "train.py").write_text(TRAIN)
    server = {"command": ["python3", "server.py"], "ready": "/", "restart": 1, "grace": "2s"}
    train = {"command": ["python3", "train.py"], "after": "server", "ends": "job", "grace": "2s", "nodes": "rest"}
    train["progress"] = {"step": r"step (\d+)/(\d+)"}  # type: ignore[assignment]
    keys: dict[str, Any] = {"name": "pair", "nodes": 2, "site": "local", "retry": 1, "preflight": "off"}
    keys |= {"roles": {"server": server, "train": train}}
    keys["notify"] = {"command": ["bash", "-c", f"cat >>{tmp_path}/messages"], "events": ["first_step", "stop"]}
    (tmp_path / "job.yaml").write_text(json.dumps(keys))

    watched = launch(tmp_path, "submit", "job.yaml", "--wait")
    assert watched.returncode == 1, watched.stderr
    said = watched.stdout + watched.stderr
    assert "roles: 0 of 2 ready; server starting" in said
    assert "server starting restarted once" in said

    found = json.loads(launch(tmp_path, "status", "@last", "--json").stdout)
    assert found["starting_phases"]["roles"] >= 1.1
    assert 0.9 <= found["time"]["restarting"] <= 6, "the training stood still while the server was away"
    roles = {one["name"]: one for one in found["roles"]}
    assert (roles["server"]["restarts"], roles["server"]["exit_code"], roles["server"]["failed"]) == (1, 5, True)
    assert roles["server"]["first_ready"] - roles["server"]["started"] >= 1.1
    assert roles["train"]["started"] >= roles["server"]["first_ready"]
    assert not roles["train"]["failed"]

    first = json.loads(launch(tmp_path, "why", "@last", "--json").stdout)["first_failure"]
    assert (first["role"], first["exit_code"], first["node"]) == ("server", 5, roles["server"]["nodes"][0])
    for verb in ("status", "why"):
        text = launch(tmp_path, verb, "@last").stdout
        assert "with exit code 5" in text, text
    assert launch(tmp_path, "report", "@last", "-o", "page.html").returncode == 0
    page = (tmp_path / "page.html").read_text()
    for words in (
        "<h2>Roles</h2>",
        "its start took",
        "restarted once",
        "after the job began",
        "First failure: role server",
    ):
        assert words in page, words

    messages = [json.loads(line) for line in (tmp_path / "messages").read_text().splitlines()]
    assert [one["event"] for one in messages] == ["first_step", "stop"]
    assert messages[0]["roles"].startswith("train ready since")
    assert messages[1]["failed_first"].startswith("role server")
    assert "server ended with exit code 5, restarts: 1" in messages[1]["roles"]
