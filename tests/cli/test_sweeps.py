"""Sweeps from the command line, with real jobs on this machine: what `cancel` and `resubmit` do to their points."""

from __future__ import annotations

import os
import signal
from collections import Counter

from hpc_launch.runs.submitting.run_store import STOP_AFTER
from tests.cluster.faults import wait_until
from tests.view.home import Home

JOB = r"""
name: rates
site: local
launcher: none
time: 5
hang: false
command: [sh, -c, 'echo "$0" >>FOLDER/trained; BODY']
sweep: {grid: {args: [[0], [1], [2]]}}
retry: {max_attempts: 1}
"""


def job_file(home: Home, body: str, *, limit: int = 1, retry: str = "") -> str:
    path = home.path / "rates.yaml"
    text = JOB.replace("FOLDER", str(home.path)).replace("BODY", body).replace("]]}}", f"]]}}, limit: {limit}}}")
    path.write_text(text.replace("{max_attempts: 1}", retry or "{max_attempts: 1}"))
    return str(path)


def submit(home: Home, body: str, *, limit: int = 1, retry: str = "") -> str:
    return str(home.json("submit", job_file(home, body, limit=limit, retry=retry))["run"])


def trained(home: Home) -> Counter[str]:
    path = home.path / "trained"
    return Counter(path.read_text().split() if path.exists() else ())


def states(home: Home, name: str) -> list[str]:
    return [one["state"] for one in home.json("status", name)["points"]]


def ended(home: Home, name: str, point: int) -> bool:
    return (home.runs / name / f"{name}.{point}" / "attempts" / "001" / "end.json").exists()


def test_what_has_completed_stays_so_when_the_sweep_is_cancelled_and_resubmitted(home: Home) -> None:
    name = submit(home, f"test $0 = 0 || test -e {home.path}/go || exec sleep 100", limit=2)
    wait_until(lambda: ended(home, name, 0) and trained(home)["1"] == 1)
    home.call("cancel", name)
    home.call("watch", name, code=1)
    assert states(home, name)[0] == "COMPLETED"
    assert set(states(home, name)[1:]) == {"CANCELLED"}

    (home.path / "go").touch()
    home.call("resubmit", name, "--wait")
    assert set(states(home, name)) == {"COMPLETED"}
    assert trained(home)["0"] == 1


def test_each_point_that_ends_starts_the_next_one_with_nobody_watching(home: Home) -> None:
    submit(home, "test $0 = 1")
    wait_until(lambda: trained(home) == {"0": 1, "1": 1, "2": 1})


def test_a_sweep_that_is_cancelled_while_it_is_submitted_gets_no_further_point(home: Home) -> None:
    path = job_file(home, "exec sleep 100", limit=3)
    submitting = home.start("submit", path, env={**home.environment, STOP_AFTER: "index"})
    assert os.WIFSTOPPED(os.waitpid(submitting.pid, os.WUNTRACED)[1])
    name = next(home.runs.iterdir()).name
    home.call("cancel", name)
    submitting.send_signal(signal.SIGCONT)
    _, said = submitting.communicate(timeout=60)
    assert "was cancelled" in said
    home.call("watch", name, code=1)
    assert set(states(home, name)) == {"CANCELLED"}
    assert set(trained(home)) <= {"0"}


def test_no_attempt_follows_once_a_sweep_is_cancelled(home: Home) -> None:
    name = submit(home, "exit 7", limit=3, retry="{max_attempts: 4, backoff: 60s, on: {user_code_error: RETRY}}")
    wait_until(lambda: states(home, name) == ["RETRYING"] * 3)
    home.call("cancel", name)
    home.call("watch", name, code=1)
    assert set(states(home, name)) <= {"CANCELLED", "FAILED"}
    assert set(trained(home).values()) == {1}


def test_options_that_cannot_apply_leave_a_cancelled_sweep_as_it_is(home: Home) -> None:
    name = submit(home, "exec sleep 100")
    wait_until(lambda: trained(home)["0"] == 1)
    home.call("cancel", name)
    home.call("watch", name, code=1)
    assert "never submitted" in home.call("resubmit", name, "--set=env.B=new", code=2).stderr
    assert set(states(home, name)) == {"CANCELLED"}
    assert trained(home) == {"0": 1}


def test_a_wrong_option_submits_nothing(home: Home) -> None:
    name = submit(home, "false", limit=3)
    home.call("watch", name, code=1)
    before = trained(home)
    assert "unknown key" in home.call("resubmit", name, "--set=nope=3", code=3).stderr
    assert trained(home) == before
    assert states(home, name) == ["FAILED"] * 3


def test_points_that_are_resubmitted_keep_the_limit(home: Home) -> None:
    name = submit(home, "false")
    home.call("watch", name, code=1)
    done = home.call("resubmit", name, "--set=command=[sleep, '100']")
    assert f"2 points are left: they wait for the points before them; `resubmit {name}`" in done.stderr
    assert states(home, name).count("FAILED") == 2
    home.call("cancel", name)
