from __future__ import annotations

import pytest

from tests.view.home import HELD, Home


@pytest.fixture(scope="module")
def three(shared_home: Home) -> list[str]:
    """A failed, a completed and a running one; the names newest first."""
    names = [shared_home.submit("exit 1", name="bad").name, shared_home.submit("true", name="good").name]
    shared_home.call("watch", *names, code=1)
    return [shared_home.submit(HELD, name="long").name, *reversed(names)]


def test_finished_runs_stay_listed(shared_home: Home, three: list[str]) -> None:
    lines = shared_home.call("list").stdout.splitlines()
    assert lines[0].split()[:3] == ["RUN", "STATE", "TIME"]
    # Of runs made within one second the order is that of their names.
    assert sorted(line.split()[0] for line in lines[1:]) == sorted(three)
    states = {line.split()[0]: line.split()[1] for line in lines[1:]}
    assert [states[name] for name in three[1:]] == ["COMPLETED", "FAILED"]
    assert states[three[0]] in ("STARTING", "RUNNING")


def test_as_json(shared_home: Home, three: list[str]) -> None:
    found = shared_home.json("list")
    assert sorted(row["run"] for row in found) == sorted(three)
    for row in found:
        assert list(row) == [
            "run", "name", "site", "state", "reason", "job_id", "state_source", "state_age_s", "progress",
        ]  # fmt: skip


def test_by_state_and_number(shared_home: Home, three: list[str]) -> None:
    assert [row["run"] for row in shared_home.json("list", "--state", "failed")] == [three[2]]
    both = shared_home.json("list", "--state", "failed", "--state", "COMPLETED")
    assert sorted(row["run"] for row in both) == sorted(three[1:])
    assert len(shared_home.json("list", "-n", "2")) == 2
    shared_home.call("list", "--state", "done", code=2)
    shared_home.call("list", "-n", "0", code=2)


def test_by_site_and_time(shared_home: Home, three: list[str]) -> None:
    assert len(shared_home.json("list", "--site", "local", "--since", "1h")) == 3
    assert len(shared_home.json("list", "--site", "local", "-n", "2")) == 2
    for words in (["--site", "other"], ["--since", "0"]):
        assert shared_home.json("list", *words) == []
        assert shared_home.call("list", *words).stderr == "no run is like that\n"
    assert "Invalid value for '--since'" in shared_home.call("list", "--since", "soon", code=2).stderr


def test_when_there_is_nothing(home: Home) -> None:
    assert home.json("list") == []
    done = home.call("list")
    assert done.stdout == ""
    assert "hpc-launch submit" in done.stderr


def test_what_is_left_out_is_said(home: Home) -> None:
    for number in range(52):
        home.unsubmitted(name=f"tiny-{number}")
    done = home.call("list")
    assert len(done.stdout.splitlines()) == 51
    assert "2 older runs not shown; use -n 52 to see all" in done.stderr
    assert len(home.json("list")) == 52
