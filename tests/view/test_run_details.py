from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.cli.main import VERBS
from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.runs.records.submission import Overrides
from hpc_launch.runs.status.progress_reader import Progress
from hpc_launch.runs.status.run_status import RUN_STATES
from hpc_launch.runs.status.startup_summary import Group, Startup
from hpc_launch.view.format_values import clock_time
from hpc_launch.view.run_details import details, summary
from hpc_launch.view.run_table import table_lines
from hpc_launch.view.state_text import detach_message, next_commands, one_line
from tests.view.samples import HOSTILE, NOW, attempt, status, steers


def test_a_running_one_in_full() -> None:
    assert details(status(), now=NOW)[:8] == [
        "tiny-1",
        "  state     RUNNING, from squeue 4 s ago",
        "  progress  [######------------------------] 20%",
        "            step 40/200, loss 2.31, 3.2 steps/s, 50 s left",
        "  site      test",
        f"  attempt   1: RUNNING, job 4711, on n[1-4], started {clock_time(NOW - 35, NOW)}, so far 35 s",
        "  folder    /runs/tiny-1",
        "  next      hpc-launch watch tiny-1    follow it live",
    ]


@pytest.mark.parametrize(("state", "words"), [("RUNNING", " so far"), ("COMPLETED", ""), ("FAILED", None)])
def test_a_pattern_that_never_matches_is_named(state: str, words: str | None) -> None:
    text = "\n".join(details(status(state=state, progress=Progress(unmatched=True)), now=NOW))
    assert ("progress.step" in text) is (words is not None)
    assert words is None or f"progress.step has matched no line{words}\n" in text


def test_a_start_shows_its_phase_and_the_nodes_behind() -> None:
    behind = Group("started", ("n3", "n7"), NOW - 250)
    startup = Startup((Group("joined", ("n1", "n2"), NOW - 200), behind), "apptainer")
    run = status(state="STARTING", reason="no output yet", progress=Progress(), startup=startup)
    slow = "n3, n7 still starting their container (4 m 10 s)"
    text = f"rendezvous: 2 of 4 nodes; {slow}"
    assert f"  phase    {text}" in details(run, now=NOW)
    assert one_line(run, now=NOW) == f"starting for 35 s (no output yet), {text}, job 4711"
    assert table_lines([run], now=NOW)[1].endswith(text)
    shown = run.as_json()
    assert (shown["phase"], shown["waiting_for"]) == ("rendezvous", ["n3", "n7"])
    alone = status(startup=Startup((Group("python", ("n1",), NOW - 7),)))
    assert "  phase     imports (7 s)" in details(alone, now=NOW)


def test_a_stuck_one_says_why_and_what_helps() -> None:
    held = status(state="STUCK", reason="JobHeldUser: The job is held. Release it.", progress=Progress())
    text = "\n".join(details(held, now=NOW))
    assert "STUCK, from squeue 4 s ago" in text
    assert "Release it." in text
    assert "hpc-launch cancel tiny-1" in text
    assert "progress" not in text


def test_each_attempt_has_its_line() -> None:
    first = attempt(state="TIMEOUT", exit_code=143, ended=NOW - 40, started=NOW - 100)
    text = "\n".join(details(status(attempts=(first, attempt(number=2, overrides=Overrides(set=("lr=1",))))), now=NOW))
    assert "1: TIMEOUT, job 4711, on n[1-4], exit code 143" in text
    assert "took 1 m 00 s" in text
    assert "changed: --set lr=1" in text


def test_a_state_without_a_source_claims_none() -> None:
    assert details(status(state="UNKNOWN", source="none", age_s=None))[1].split()[-1] == "UNKNOWN"
    assert details(status(source="end_record", age_s=0.2))[1].endswith("RUNNING, from the job's own record just now")


@pytest.mark.parametrize("state", RUN_STATES)
def test_what_is_proposed_exists(state: str) -> None:
    proposed = next_commands(status(state=state, run="a b"))
    assert proposed
    for command, purpose in proposed:
        program, verb, *rest = command.split(" ", 2)
        assert (program, rest[0].split(" -f")[0]) == ("hpc-launch", "'a b'")
        assert verb in VERBS
        assert purpose


def test_the_end_of_a_failed_one_quotes_what_the_verdict_rests_on() -> None:
    quote = Quote("logs/node-1.log", 12, "[rank3]: KeyError: 'x'\x1b[2J")
    failed = status(state="FAILED", attempts=(attempt(state="FAILED", evidence=(quote,)),))
    text = "\n".join(summary(failed, now=NOW))
    assert "evidence" in text
    assert "logs/node-1.log:12 | [rank3]: KeyError: 'x'" in text
    assert "\x1b" not in text
    assert "last lines" not in text


def test_the_end_names_logs_checkpoints_and_the_last_lines(tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "001"
    (folder / "logs").mkdir(parents=True)
    (tmp_path / "checkpoints").mkdir()
    lines = ["[rank0]: step 199", "[rank1]: not this one", "[rank0]: \x1b[31mTraceback\x1b[0m", ""]
    (folder / "logs" / "node-0.log").write_text("\n".join(lines))
    failed = status(state="FAILED", folder=tmp_path, attempts=(attempt(folder, state="FAILED", ended=NOW - 5),))
    text = "\n".join(summary(failed, now=NOW))
    assert text.startswith("tiny-1 FAILED after 30 s")
    assert "reached      step 40/200, loss 2.31\n" in text
    assert "| step 199\n" in text
    assert "| Traceback\n" in text
    assert "not this one" not in text
    assert f"logs         {folder}/logs" in text
    assert f"checkpoints  {tmp_path}/checkpoints" in text
    assert "hpc-launch why tiny-1" in text
    assert "hpc-launch resubmit tiny-1" in text
    assert not steers(text)


def test_the_batch_log_speaks_where_the_training_did_not(tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "001"
    folder.mkdir(parents=True)
    (folder / "batch.log").write_text("module load CUDA failed\n")
    failed = status(state="FAILED", folder=tmp_path, attempts=(attempt(folder, state="FAILED"),))
    text = "\n".join(summary(failed, now=NOW))
    assert "| module load CUDA failed" in text
    assert f"logs        {folder}/batch.log" in text


def test_what_wandb_kept_is_to_be_sent_once_the_run_is_over(tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    over = status(state="COMPLETED", folder=folder)
    assert "wandb sync" not in "\n".join(summary(over, now=NOW))
    (folder / "wandb" / "offline-run-20261121_101335-x1").mkdir(parents=True)
    (line,) = (line for line in summary(over, now=NOW) if "wandb sync" in line)
    assert line.split(maxsplit=1) == ["upload", f"wandb sync '{folder}/wandb'/offline-run-*"]
    assert "wandb sync" in "\n".join(details(over, now=NOW))
    assert "wandb sync" not in "\n".join(details(status(state="RUNNING", folder=folder), now=NOW))


def test_colour_only_where_it_is_wanted() -> None:
    assert "\x1b[36m" in "".join(details(status(), colour=True))
    assert "\x1b" not in "".join(details(status()) + summary(status()))


def test_a_line_for_a_log() -> None:
    assert one_line(status(), NOW) == "running for 35 s, step 40/200, loss 2.31, 3.2 steps/s, 50 s left"
    pending = status(state="PENDING", reason="Priority", attempts=(), progress=Progress())
    assert one_line(pending, NOW) == "pending (Priority), job 4711"
    again = status(attempts=(attempt(number=1, state="FAILED"), attempt(number=2)))
    assert one_line(again, NOW).startswith("attempt 2 running for 35 s, step 40/200")


def test_how_to_come_back() -> None:
    assert detach_message(["tiny-1"]) == "the job keeps running; follow again with: hpc-launch watch tiny-1"
    assert detach_message(["a", "b;c"]) == "the jobs keep running; follow again with: hpc-launch watch a 'b;c'"


def test_hostile_values_stay_text() -> None:
    bad = status(
        run=HOSTILE,
        site=HOSTILE,
        reason=HOSTILE,
        job_id=HOSTILE,
        folder=Path("/runs") / HOSTILE.replace("\x00", ""),
        attempts=(attempt(job_id=HOSTILE, nodes=(HOSTILE,), overrides=Overrides(set=(HOSTILE,)), state=HOSTILE),),
    )
    for lines in (details(bad, now=NOW), summary(bad, now=NOW), [one_line(bad, NOW), detach_message([bad.run])]):
        assert not [line for line in lines if not line.isprintable()]
