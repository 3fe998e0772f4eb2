"""Submit, follow, resubmit, diagnose and cancel without a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.base.errors import UsageError
from hpc_launch.runs.run_index import Index, user_index
from hpc_launch.service.cancel import cancel
from hpc_launch.service.check import check_file
from hpc_launch.service.diagnose import diagnose_run
from hpc_launch.service.poll import follow
from hpc_launch.service.resubmit import resubmit
from hpc_launch.service.submit import Submitted, submit

JOB = "{name: short, site: local, launcher: none, time: 5, hang: false, command: [echo, done], retry: 1}"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    environment = {"HOME": str(tmp_path), "HPC_LAUNCH_HOME": str(tmp_path / "runs"), "XDG_STATE_HOME": str(tmp_path)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return user_index(environment)


def started(tmp_path: Path, index: Index, text: str = JOB) -> Submitted:
    (tmp_path / "job.yaml").write_text(text)
    return submit(check_file(tmp_path / "job.yaml", site=None, sets=["env.A=1"]), index)


def test_a_run_is_followed_and_repeated_without_a_word(
    tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    run = started(tmp_path, index).run
    assert [one.state for one in follow([run], index)] == ["COMPLETED"]
    assert diagnose_run(run, index)[0].failure_class == "success"
    with pytest.raises(UsageError, match="nothing was submitted"):
        resubmit(run, index)
    assert resubmit(run, index, confirmed=True).as_json()["run"] == run.name
    assert [len(one.attempts) for one in follow([run], index)] == [2]
    assert capsys.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the queue outlives this process
def test_a_sweep_is_submitted_and_cancelled(tmp_path: Path, index: Index) -> None:
    sweep = started(tmp_path, index, JOB.replace("[echo, done]", "[sleep, '100'], sweep: {grid: {env.B: [1, 2]}}"))
    assert sweep.size == "1 of 2 points"
    assert "1 point is left: they wait for the points before them" in (sweep.left or "")
    assert "cancelled job" in cancel(sweep.run, index)
    assert [one.state for one in follow([sweep.run], index)] == ["CANCELLED"]
