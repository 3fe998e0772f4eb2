from __future__ import annotations

from hpc_launch.runs.status.run_status import STATE_SOURCES
from tests.view.home import LONG, Home


def test_a_finished_run_as_json(home: Home) -> None:
    run = home.submit()
    home.call("watch", "@last")
    found = home.json("status", run.name)
    assert list(found) == [
        "run", "name", "site", "state", "reason", "job_id", "state_source", "state_age_s", "attempts", "progress",
        "time", "starting_phases",
    ]  # fmt: skip
    assert (found["run"], found["name"], found["site"]) == (run.name, "tiny", "local")
    assert (found["state"], found["reason"], found["job_id"]) == ("COMPLETED", None, home.job_id(run))
    assert found["state_source"] in STATE_SOURCES
    assert 0 <= found["state_age_s"] < 60
    (attempt,) = found["attempts"]
    assert list(attempt) == [
        "number", "job_id", "state", "exit_code", "nodes", "submitted", "started", "ended", "class", "verdict",
        "evidence", "overrides",
    ]  # fmt: skip
    assert (attempt["number"], attempt["state"], attempt["exit_code"]) == (1, "COMPLETED", 0)
    assert attempt["nodes"] == ["n1", "n2"]
    assert attempt["submitted"] <= attempt["ended"]
    assert list(found["progress"]) == ["step", "total", "loss", "rate", "eta_s"]
    assert (found["progress"]["step"], found["progress"]["total"], found["progress"]["loss"]) == (4, 4, 0.4)


def test_what_is_not_known_is_null(home: Home) -> None:
    found = home.json("status", home.unsubmitted().name)
    assert found["state"] == "SUBMITTING"
    assert found["job_id"] is None
    assert found["progress"] == dict.fromkeys(["step", "total", "loss", "rate", "eta_s"])


def test_a_run_is_named_in_many_ways(home: Home) -> None:
    run = home.submit(LONG)
    for name in (run.name, run.name[:-3], home.job_id(run), str(run.path), "@last"):
        assert home.json("status", name)["run"] == run.name


def test_a_run_in_words(home: Home) -> None:
    run = home.submit("say 0 'step 3/4 loss 0.5'; exit 3")
    home.call("watch", "@last", code=1)
    shown = home.call("status", "@last").stdout
    assert "FAILED, from " in shown
    assert "exit code 3" in shown
    assert "step 3/4, loss 0.5" in shown
    assert f"hpc-launch resubmit {run.name}" in shown


def test_without_a_name_those_that_are_not_over(home: Home) -> None:
    assert home.call("status").stdout == ""
    assert home.json("status") == []
    over = home.submit("true", name="over")
    home.call("watch", over.name)
    live = home.submit(LONG, name="live")
    assert [found["run"] for found in home.json("status")] == [live.name]
    shown = home.call("status").stdout
    assert live.name in shown
    assert over.name not in shown


def test_an_unknown_name_is_a_usage_error(home: Home) -> None:
    run = home.submit("true")
    done = home.call("status", "timy", code=2)
    assert done.stdout == ""
    assert f"did you mean {run.name}?" in done.stderr
