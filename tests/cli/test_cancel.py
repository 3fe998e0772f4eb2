from __future__ import annotations

import os

import pytest

from hpc_launch.runs.records.run_info import read_journals
from tests.runs.samples import read_json
from tests.view.home import LONG, Home


def test_a_running_one(home: Home) -> None:
    run = home.submit(LONG)
    job_id = home.job_id(run)
    done = home.call("cancel", "@last")
    assert done.stdout == f"{run.name}: cancelled job {job_id}\n"
    home.call("watch", "@last", code=1)
    found = home.json("status", run.name)
    assert found["state"] == "CANCELLED"
    assert "cancelled by" in found["reason"]
    assert [event.job_id for event in read_journals(run) if event.event == "cancel asked"] == [job_id]


def test_one_that_completed_is_left_as_it_is(home: Home) -> None:
    run = home.submit("true")
    home.call("watch", "@last")
    assert "is already over: COMPLETED" in home.call("cancel", "@last").stdout
    assert not run.attempt(1).cancel.exists()
    assert home.json("status", "@last")["state"] == "COMPLETED"


def test_one_that_is_just_being_submitted_will_never_train(home: Home) -> None:
    run = home.unsubmitted()
    assert "CANCELLED, no job to cancel" in home.call("cancel", run.name).stdout
    assert run.attempt(1).claim.read_text().startswith("void cancelled by ")
    assert home.json("status", run.name)["state"] == "CANCELLED"
    assert read_json(run.attempt(1).job) is None


def test_several_at_once_and_none_where_one_is_misspelt(home: Home) -> None:
    first, second = home.submit(LONG, name="first"), home.submit(LONG, name="second")
    assert "no run is called 'third'" in home.call("cancel", "first", "third", code=2).stderr
    assert home.json("status", first.name)["state"] in ("STARTING", "RUNNING")
    # The same run twice is one.
    assert len(home.call("cancel", "first", "second", first.name).stdout.splitlines()) == 2
    home.call("watch", "first", "second", code=1)
    assert {row["state"] for row in home.json("list")} == {"CANCELLED"}
    assert second.attempt(1).cancel.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_each_outcome_has_a_line_and_the_exit_code_is_the_worst(home: Home) -> None:
    """Where several fail: a scheduler that nobody reaches, then a run of another user."""
    alive, silent, foreign = (home.submit(LONG, name=name) for name in ("alive", "silent", "foreign"))
    silent.info.write_text(silent.info.read_text().replace('"scheduler": "local"', '"scheduler": "slurm"'))
    os.chown(foreign.path, 65534, 65534)
    done = home.call("cancel", "silent", str(foreign.path), "alive", code=4)
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"{silent.name}: not cancelled", f"{foreign.name}: not cancelled"]
    assert lines[2].startswith(f"{alive.name}: cancelled job ")
    assert done.stderr.count("error: ") == 2
    os.chown(foreign.path, 0, 0)
