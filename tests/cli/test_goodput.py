"""Where the time of real runs on this machine went, as `status`, `list --goodput` and `why` show it."""

from __future__ import annotations

import json
import re
import time

import pytest

from hpc_launch.performance.time_account import CATEGORIES
from hpc_launch.runs.layout import RunFolder
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
    assert "<h1>" in home.call("report", run.name).stdout
    assert "None in the job files." in home.call("report", run.name, "@last").stdout
    assert home.json("why", run.name)["time"] == home.json("status", run.name)["time"]


@pytest.mark.prove  # tests/performance/test_time_account.py repeats steps, too
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


SAMPLES = "".join(
    f'{{"t": {at}, "event": "sample", "rss_mib": {{"0": 2048}}, "cpu_s": {{"0": {at}}}, '
    f'"gpus": [{{"index": 0, "util": 60}}, {{"index": 1, "util": 0}}]}}\\n'
    for at in range(1000, 1120, 30)
)
SAMPLES += '{"t": 1150, "event": "sample", "rss_mib": {}, "cpu_s": {}}\\n'
"""Made up: no GPU was at hand to record them. In the last one, the ranks have ended."""


def test_runs_with_idle_gpus_come_first(home: Home) -> None:
    idle = home.submit(
        f"mkdir -p $dir/agent; printf '{SAMPLES}' >$dir/agent/node-0.jsonl; say 0 'step 4/4'", name="idle"
    )
    home.call("watch", idle.name)
    plain = home.submit("say 0 'step 4/4'", name="plain")
    home.call("watch", plain.name)
    lines = home.call("list", "--efficiency").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["RUN", idle.name, plain.name]
    assert "30%" in lines[1]
    assert "1 of 2 GPUs were idle in all samples: request fewer, or start a process for each" in lines[1]
    shown = re.sub(" +", " ", home.call("status", idle.name).stdout)
    assert "\n use GPUs 30%, memory 2 GiB, CPUs 1\n" in shown
    assert "\n advice 1 of 2 GPUs were idle" in shown
    found = {one["run"]: one["efficiency"] for one in home.json("list", "--efficiency")}
    assert (found[idle.name]["gpu_use"], found[idle.name]["idle_gpus"]) == (0.3, 1)
    assert (found[plain.name]["gpu_use"], found[plain.name]["advice"]) == (None, "")
