"""Where the time of real runs on this machine went, as `status`, `list --goodput` and `why` show it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from hpc_launch.performance.run_times import run_times
from hpc_launch.performance.time_account import CATEGORIES
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.schedulers.local.local_scheduler import LocalScheduler
from tests.view.home import Home

NOTE = """note() { printf '{"t": %s, "event": "output", "size": %d, "written": %s}\\n' "$(date +%s.%N)" """
NOTE += """"$(stat -c %s $dir/logs/node-0.log)" "$(date +%s.%N)" >>$dir/agent/node-0.jsonl; }; mkdir -p $dir/agent; """
"""The watcher's notes of the log."""


def steps(first: int, last: int) -> str:
    """The body of a training that makes these steps."""
    return f'{NOTE}for i in {{{first}..{last}}}; do say 0 "step $i/40 loss 0.$i"; note; sleep 0.1; done; '


def checked(home: Home, run: RunFolder, began: float) -> dict[str, float]:
    """The time of a run by category, which must be its wall time."""
    found = home.json("status", run.name)
    wall = time.time() - began
    spent: dict[str, float] = found["time"]
    assert list(spent) == list(CATEGORIES)
    assert min(spent.values()) >= 0
    # It was created after `began`, and is over before now.
    assert sum(spent.values()) <= wall
    if found["state"] in ("COMPLETED", "FAILED", "CANCELLED"):
        ended = json.loads(run.attempts()[-1].final.read_text())["ended"]
        created = json.loads(run.info.read_text())["created"]
        assert sum(spent.values()) == pytest.approx(ended - created, rel=0.01, abs=0.01)
    return {name: seconds for name, seconds in spent.items() if seconds > 0.3}


def test_a_finished_run(home: Home) -> None:
    began = time.time()
    run = home.submit(f"sleep 1.2; {steps(1, 40)} sleep 1.2")
    home.call("watch", run.name)
    spent = checked(home, run, began)
    assert {"starting", "training", "ending"} <= set(spent)
    assert 2 < spent["training"] < 10
    assert "  time      training " in home.call("status", run.name).stdout
    assert "  time       training " in home.call("why", run.name).stdout
    assert home.json("why", run.name)["time"] == home.json("status", run.name)["time"]


def test_a_run_with_a_second_attempt_that_repeats_steps(home: Home) -> None:
    began = time.time()
    run = home.submit(f"{steps(1, 30)} exit 3")
    home.call("watch", run.name, code=1)
    home.again(run, steps(11, 40))
    home.call("watch", run.name)
    spent = checked(home, run, began)
    assert 1.5 < spent["repeated"] < 10, "steps 11 to 30"
    assert spent["repeated"] < spent["training"]
    line = home.call("list", "--goodput").stdout.splitlines()
    assert line[0].split()[:4] == ["RUN", "STATE", "GOODPUT", "WALL"]
    assert line[1].split()[:2] == [run.name, "COMPLETED"]
    (listed,) = home.json("list", "--goodput")
    assert listed["time"] == home.json("status", run.name)["time"]
    assert "time" not in home.json("list")[0]


def tracked(run: RunFolder) -> RunTracker:
    return RunTracker([run], lambda _: LocalScheduler())


RECORDS = ["run.json", *(f"attempts/00{n}/{name}" for n in (1, 2) for name in ("intent.json", "job.json", "start.json",
           "end.json", "claim", "final.json", "verdict.json", "logs/node-0.log", "agent/node-0.jsonl"))]  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a run of two attempts, by name."""
    now = 1_700_000_000
    files: dict[str, Any] = {"run.json": {"run": "r", "name": "r", "scheduler": "local", "created": now}}
    for number, at in ((1, now + 5), (2, now + 300)):
        folder, job = f"attempts/00{number}", f"local-9999{number}"
        script = {"job_id": job, "restart": 0, "started": at + 2}
        final = {"job_id": job, "state": "FAILED", "source": "sacct"}
        lines = [f"step {step}/100 loss 0.5" for step in range(number, 40 * number)]
        notes = [
            {"t": at + 9 + i / 2, "event": "output", "size": 20 * i, "written": at + 9 + i / 2}
            for i in range(1, len(lines))
        ]
        notes += [{"t": at + 30, "event": "saved", "seconds": 2.5}, {"t": at + 50, "event": "gone", "exit_code": 1}]
        files |= {
            f"{folder}/intent.json": {"time": at, "token": "t", "job_name": "x"},
            f"{folder}/job.json": {"job_id": job, "submitted": at + 1, "restart": 0},
            f"{folder}/claim": job,
            f"{folder}/plan.json": {"progress": {"step": r"step (\d+)/(\d+)", "loss": r"loss (\S+)"}},
            f"{folder}/start.json": {**script, "ended": at + 3, "phase": "training"},
            f"{folder}/end.json": {**script, "exit_code": 2 - number, "ended": at + 60},
            f"{folder}/final.json": {**final, "as_of": at + 70, "started": at + 2, "ended": at + 61},
            f"{folder}/verdict.json": {"action": "RETRY" if number == 1 else "STOP", "time": at + 62},
            f"{folder}/logs/node-0.log": "\n".join(lines),
            f"{folder}/agent/node-0.jsonl": "\n".join(map(json.dumps, notes)),
        }  # fmt: skip
    return {name: text if isinstance(text, str) else json.dumps(text) for name, text in files.items()}


FAR = [-(10**12), 10**18]
DAMAGE = some.dictionaries(
    some.sampled_from(RECORDS),
    some.one_of(some.just("missing"), some.floats(0, 1), some.integers(-1000, 1000), some.sampled_from(FAR)),
    max_size=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=DAMAGE)
def test_damaged_records_never_break_the_sum(
    home: Home, told: dict[str, str], damage: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Files that are missing or cut off, and times that are shifted."""
    run = RunFolder(tmp_path_factory.mktemp("runs") / "r")
    for name, text in told.items():
        done = damage.get(name)
        if done == "missing":
            continue
        path = run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text[: int(len(text) * done)] if isinstance(done, float) else _shifted(text, done or 0))
    status = tracked(run).poll()["r"]
    account = run_times(status, time.time()).account
    spent = account.by_category()
    assert min(spent.values()) >= 0
    assert sum(spent.values()) == pytest.approx(account.wall_s, rel=1e-6, abs=1e-3)
    if not damage:
        assert account.wall_s == 361
        assert {name: round(seconds) for name, seconds in spent.items() if seconds} == {
            "queued": 9, "starting": 15, "training": 68, "repeated": 18, "checkpointing": 5, "detecting": 10,
            "restarting": 235, "ending": 1,
        }  # fmt: skip


def _shifted(text: str, by: int) -> str:
    """The same with each time shifted."""
    if not text.startswith("{"):
        return text
    lines = []
    for line in text.splitlines():
        record = json.loads(line)
        lines.append(
            json.dumps({k: v + by if isinstance(v, int | float) and v > 10**8 else v for k, v in record.items()})
        )
    return "\n".join(lines)
