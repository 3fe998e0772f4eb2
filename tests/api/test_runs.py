"""`hl.Run` on this machine: submit, follow, explain, cancel, repeat; in threads, event loops and notebooks."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import hpc_launch as hl
from hpc_launch.base.findings import Finding

SLOW = ["command=[sleep, '100']", "script=null", "args=null"]


def test_a_run_from_its_submission_to_its_second_attempt(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = hl.submit("job.yaml", set={"args.steps": 3, "args.lr": 0.5})
    assert run.submission is not None
    assert run.submission.job_ids
    lines = list(run.logs(follow=True))
    assert [str(line) for line in lines if line.node == 0] == [
        "step 1/3 loss 0.5", "step 2/3 loss 0.25", "step 3/3 loss 0.166667",
    ]  # fmt: skip
    status = run.wait(timeout=60, check=True)
    assert (status.state, status.progress.step, status.progress.loss) == ("COMPLETED", 3, 0.166667)
    assert [str(line) for line in run.logs(node=0)] == [str(line) for line in lines if line.node == 0]
    assert run.why().good
    assert str(run.why()).startswith("success, confidence high\n")
    assert run.report().lower().startswith("<!doctype html>")
    assert "already over" in run.cancel()
    with pytest.raises(hl.UsageError, match="COMPLETED at step 3; nothing was submitted") as error:
        run.resubmit()
    assert "confirmed=True" in (error.value.hint or "")
    again = run.resubmit(set={"args.steps": 1}, confirmed=True)
    assert (again, again.wait(60).progress.total) == (run, 1)
    assert "step 1/3" in str(next(line for line in run.logs(attempt=1) if line.node == 0))
    with pytest.raises(hl.UsageError, match="no attempt 3"):
        run.why(3)
    assert capfd.readouterr() == ("", "")


def test_runs_are_found_and_listed_as_on_the_command_line(project: Path) -> None:
    assert hl.runs() == []
    first, second = (hl.submit("job.yaml", set={"name": name, "args.steps": 1}) for name in ("one", "two"))
    assert hl.wait([first, second], 60) == [first.last, second.last]
    assert hl.find("@last") == hl.find("tw") == hl.find(str(second.path)) == second
    assert hl.runs() == hl.runs(state="completed", since="1h", site="local") == [second, first]
    assert [run.last.state for run in hl.runs(limit=1) if run.last is not None] == ["COMPLETED"]
    ends: list[timedelta | datetime | float] = [timedelta(0), datetime.now(timezone.utc), time.time() + 9]
    assert [hl.runs(since=since) for since in ends] == [[], [], []]
    assert hl.runs(state="active") == hl.runs(state=["failed", "stopped"]) == hl.runs(site="other") == []
    with pytest.raises(hl.UsageError, match="'three'") as error:
        hl.find("three")
    assert "did you mean" in (error.value.hint or "") or "list" in (error.value.hint or "")
    with pytest.raises(hl.UsageError, match="no state is called 'complete'") as error:
        hl.runs(state="complete")
    assert error.value.hint == "did you mean 'COMPLETED'?"
    with pytest.raises(hl.UsageError, match="'5' is no age"):
        hl.runs(since="5")


def test_a_run_is_waited_for_so_long_and_cancelled(project: Path) -> None:
    run = hl.submit("job.yaml", set=SLOW)
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=f"not over after 0.5 s: {run.name} is ") as error:
        run.wait(timedelta(seconds=0.5))
    assert isinstance(error.value, hl.NotOver)
    assert time.monotonic() - begin < 30
    assert "cancelled job" in run.cancel()
    with pytest.raises(hl.RunFailed, match="is CANCELLED") as failed:
        run.wait(60, check=True)
    assert failed.value.status.state == "CANCELLED"


def test_the_explanation_of_an_exception(project: Path) -> None:
    (project / "train.py").write_text("print('step 1/2')\nraise ValueError('\\x1b[31mbad')\n")
    run = hl.submit("job.yaml", set={"args": None})
    assert run.wait(60).state == "FAILED"
    found = run.why()
    assert (found.good, found.diagnosis.failure_class) == (False, "user_code_error")
    assert "ValueError" in str(found)
    assert "<module>" not in found._repr_html_()
    assert "\x1b" not in "".join(map(str, run.logs())) + str(found) + repr(run)
    assert hl.diagnose(*run.path.glob("attempts/001/logs/node-0.log")).diagnosis.failure_class == "user_code_error"
    with pytest.raises(hl.UsageError, match=r"cannot read missing\.log"):
        hl.diagnose("missing.log")


def test_a_sweep_has_its_points_and_their_best(project: Path) -> None:
    sweep = hl.sweep("job.yaml", grid={"args.lr": [0.5, 0.25]}, set={"args.steps": 1})
    assert sweep.wait(60).state == "COMPLETED"
    whole = sweep.whole()
    assert isinstance(whole, hl.SweepStatus)
    assert whole.best is not None
    assert dict(whole.best.point.values) == {"args.lr": "0.25"}
    assert [part.status().progress.loss for part in sweep.parts()] == [0.5, 0.25]
    assert sweep.parts()[0].parts() == []
    with pytest.raises(hl.UsageError, match="is a sweep of 2 points"):
        sweep.why()


def test_await_beside_other_tasks(project: Path) -> None:
    async def main() -> tuple[list[str], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.05)
                ticks += 1

        other = asyncio.create_task(tick())
        runs = [hl.submit("job.yaml", set={"args.steps": 1}) for _ in range(2)]  # with an event loop that runs
        ended = await asyncio.gather(*runs)
        slow = hl.submit("job.yaml", set=SLOW)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(slow, 0.5)
        slow.cancel()
        other.cancel()
        return [status.state for status in ended], ticks

    states, ticks = asyncio.run(main())
    assert states == ["COMPLETED", "COMPLETED"]
    assert ticks >= 5


def test_threads_that_submit_and_wait_while_the_folder_changes(project: Path) -> None:
    def one(number: int) -> tuple[str, int | None]:
        run = hl.submit(project / "job.yaml", set={"args.steps": number})
        copy = pickle.loads(pickle.dumps(run))
        status = copy.wait(120)
        return status.state, status.progress.step

    stop = threading.Event()

    def wander() -> None:
        while not stop.wait(0.01):
            os.chdir("/tmp" if os.getcwd() == "/" else "/")

    wanderer = threading.Thread(target=wander)
    wanderer.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(one, range(1, 5)))
    finally:
        stop.set()
        wanderer.join()
    assert found == [("COMPLETED", number) for number in range(1, 5)]
    assert len(hl.runs()) == 4


def test_a_notebook_shows_state_progress_and_loss_escaped(project: Path) -> None:
    run = hl.submit("job.yaml", set={"args.steps": 1, "progress.loss": None})
    run.wait(60)
    page = run._repr_html_()
    assert all(text in page for text in (run.name, "COMPLETED", "step 1/1"))
    assert run.last is not None
    evil = hl.Run(project / "<script>alert(1)</script>", last=replace(run.last, reason="<b>\x1b[31m", state="FAILED"))
    assert "<script>" not in evil._repr_html_()
    assert "\x1b" not in evil._repr_html_() + repr(evil)


def test_what_is_done_reaches_the_log_or_a_listener(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Heard(hl.Listener):
        def __init__(self) -> None:
            self.texts: list[str] = []

        def warn(self, findings: object) -> None:
            assert isinstance(findings, tuple)
            self.texts += [one.code for one in findings if isinstance(one, Finding)]

    job, heard = hl.Job(name="x", site="local", launcher="none", script="train.py", time=5), Heard()
    hl.render(job, listener=heard)
    assert "HL014" in heard.texts
    with caplog.at_level(logging.INFO, "hpc_launch"):
        hl.render(job)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
