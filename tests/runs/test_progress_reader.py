"""Progress from the training's own lines, however they look."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles
from hpc_launch.runs.records.submission import ScriptRecord
from hpc_launch.runs.status.progress_reader import TAIL, Progress, ProgressReader, tail_lines
from tests.runs.samples import node_log

STEP, LOSS = r"step (\d+)(?:/(\d+))?", r"loss (\S+)"
BOTH = {"step": STEP, "loss": LOSS}


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptFolder:
    folder = AttemptFolder(tmp_path / "attempts" / "001")
    folder.logs.mkdir(parents=True)
    want(folder, step=STEP, loss=LOSS)
    return folder


def want(attempt: AttemptFolder, **patterns: object) -> None:
    attempt.plan.write_text(json.dumps({"progress": patterns}))


def log(attempt: AttemptFolder, text: str, at: float) -> None:
    with node_log(attempt).open("a") as stream:
        stream.write(text)
    os.utime(node_log(attempt), (at, at))


def read(attempt: AttemptFolder, reader: ProgressReader | None = None) -> Progress:
    return (reader or ProgressReader()).read(AttemptFiles(attempt))


def sample(attempt: AttemptFolder, at: float) -> None:
    """What the watcher of node 0 notes of the log as it is now."""
    attempt.agent.mkdir(exist_ok=True)
    note = {"t": at + 7, "event": "sample", "log": [node_log(attempt).stat().st_size, at]}
    with (attempt.agent / "node-0.jsonl").open("a") as stream:
        stream.write(json.dumps(note) + "\n")


@pytest.mark.parametrize(
    ("patterns", "text", "progress"),
    [
        (BOTH, "step 1/10 loss 4.5\nstep 2/10 loss 4.25\nsaved\nstep 3/1", Progress(2, 10, 4.25, spacing=1)),
        (BOTH, "step 1/9 loss 5\rstep 2/9 loss 4\r", Progress(2, 9, 4, spacing=1)),  # carriage returns end lines
        ({"step": r"step (\S+)", "loss": LOSS}, "step 1,200 loss nan\n", Progress(step=1200)),
        *(
            (useless, "step 1/9 loss 5\n", Progress())
            for useless in (
                {},
                {"step": "("},
                {"step": "no group"},
                {"step": None},
                {"step": r"(x)(y)(z)"},
                {"step": ["a"]},
                {"other": "(a)"},
            )
        ),
    ],
)
def test_the_newest_line_that_a_pattern_fits_counts(
    attempt: AttemptFolder, patterns: dict[str, object], text: str, progress: Progress
) -> None:
    want(attempt, **patterns)
    log(attempt, text, 100)

    assert read(attempt) == progress


@pytest.mark.parametrize(
    ("text", "over", "unmatched"),
    [
        ("epoch 1\n" * 300, False, True),
        ("epoch 1\n" * 20, False, False),  # it may just begin
        ("epoch 1\n" * 20, True, True),
        ("step 1/9\n" + "epoch 1\n" * 90_000, True, False),  # too long ago for the end of the log
    ],
)
def test_a_pattern_that_has_matched_no_line(attempt: AttemptFolder, text: str, over: bool, unmatched: bool) -> None:
    log(attempt, text, 100)
    files = AttemptFiles(attempt, end=ScriptRecord(exit_code=0) if over else None)
    assert ProgressReader().read(files).unmatched is unmatched


def test_steps_of_an_evaluation_are_no_steps_of_the_training(attempt: AttemptFolder) -> None:
    reader = ProgressReader()
    log(attempt, "step 19/20 loss 4\nstep 20/20 loss 3\neval step 1/7\neval step 2/7\n", 100)
    assert (read(attempt, reader).step, read(attempt, reader).total) == (20, 20)
    log(attempt, "eval step 3/7\n" + "x" * TAIL + "\neval step 4/7\n", 110)
    assert (read(attempt, reader).step, read(attempt, reader).total) == (20, 20)


def test_a_last_line_without_a_newline_counts_once_the_attempt_is_over(attempt: AttemptFolder) -> None:
    log(attempt, "step 19/20 loss 4.5\nstep 20/20 loss 4.25", 100)
    reader = ProgressReader()

    assert read(attempt, reader).step == 19
    over = AttemptFiles(attempt, end=ScriptRecord(exit_code=0))
    assert (reader.read(over).step, reader.read(over).loss) == (20, 4.25)


def test_what_a_late_attempt_does_not_show_is_known_from_the_one_before(attempt: AttemptFolder) -> None:
    log(attempt, "step 10/100 loss 4\nstep 20/100 loss 3\n", 100)
    second = AttemptFolder(attempt.path.parent / "002")
    second.logs.mkdir(parents=True)
    want(second, step=STEP)

    assert read(second) == Progress(None, 100, spacing=10)
    log(second, "step 21/120\n", 200)
    progress = read(second)
    assert (progress.step, progress.total, progress.spacing) == (21, 120, 10)


def test_rate_and_time_left_from_two_looks(attempt: AttemptFolder) -> None:
    reader = ProgressReader()
    log(attempt, "step 10/100 loss 4\n", 1000)
    read(attempt, reader)
    log(attempt, "step 30/100 loss 3\n", 1010)

    assert read(attempt, reader) == Progress(30, 100, 3.0, 2.0, 35.0, spacing=20)


def test_one_look_at_the_log_alone_shows_no_rate(attempt: AttemptFolder) -> None:
    """The start-up, with imports, NCCL and compilation, is not part of the rate: it would stretch the time left."""
    log(attempt, "step 500/1000\nstep 520/1000\n", 1040)

    assert read(attempt) == Progress(520, 1000, spacing=20)


def test_one_look_takes_the_watchers_samples_for_the_rate(attempt: AttemptFolder) -> None:
    log(attempt, "compiling for ten minutes\n", 1000)
    sample(attempt, 1000)
    log(attempt, "step 500/1000\nstep 510/1000\n", 1600)  # it resumed at step 500
    sample(attempt, 1600)
    log(attempt, "step 520/1000\n", 1620)
    sample(attempt, 1620)

    assert read(attempt) == Progress(520, 1000, None, 0.5, 960.0, spacing=10)


def test_a_restart_between_sample_and_look_gives_no_rate(attempt: AttemptFolder) -> None:
    log(attempt, "step 500/1000\n", 1600)
    sample(attempt, 1600)
    log(attempt, "step 20/1000\n", 1700)

    assert read(attempt).rate is None


def test_a_restart_begins_the_rate_anew(attempt: AttemptFolder) -> None:
    reader = ProgressReader()
    for at, step in ((1000, 50), (1010, 60), (1020, 10), (1030, 40)):
        log(attempt, f"step {step}/100\n", at)
        read(attempt, reader)

    assert read(attempt, reader).rate == 3.0


def test_no_plan_and_no_log(tmp_path: Path) -> None:
    assert read(AttemptFolder(tmp_path / "001")) == Progress()


def test_a_requeued_attempt_reads_by_the_plan_before_it(attempt: AttemptFolder) -> None:
    second = AttemptFolder(attempt.path.with_name("002"))
    second.logs.mkdir(parents=True)
    log(second, "step 4/9 loss 5\n", 100)

    assert read(second).step == 4


def test_a_pathological_pattern_hangs_nothing(attempt: AttemptFolder) -> None:
    want(attempt, step=r"(a+)+$", loss=LOSS)
    log(attempt, "a" * 5000 + "!\nloss 2.5\n" * 3, 100)
    reader = ProgressReader()

    begun = time.process_time()
    progress = read(attempt, reader)
    log(attempt, "loss 1.5\n", 101)
    read(attempt, reader)

    assert time.process_time() - begun < 5
    assert progress.loss == 2.5


def test_the_tail_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"y" * TAIL * 3 + b"\n" + b"z" * 5000 + b"\nlast\nunfinished")

    lines = tail_lines(path)

    assert lines[0] == "last"
    assert lines[1] == "z" * 2000
    assert "first" not in lines


@given(st.binary(max_size=300))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    attempt = AttemptFolder(tmp_path_factory.mktemp("run") / "001")
    attempt.logs.mkdir(parents=True)
    want(attempt, step=r"(\d+)/?(\d*)", loss=r"(\S+)")
    node_log(attempt).write_bytes(data)

    progress = read(attempt)

    assert json.loads(json.dumps([progress.step, progress.loss, progress.rate], allow_nan=False))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", "Early stopping: no improvement for 3 evaluations\n", "Early stopping: no improvement for 3 evaluations"),
        (
            "EarlyStopping counter: 3 out of 3\nearly stopping\n",
            "",
            "early stopping",
        ),
        ("", "{'train_runtime': 12.3, 'epoch': 0.4}\n", "{'train_runtime': 12.3, 'epoch': 0.4}"),
        ("EarlyStopping counter: 1 out of 3\n", "", None),
        ("using early stopping with patience 3\n" + "step 11/30\n" * 9, "", None),
        ("", "saved the model\n", None),
    ],
)
def test_a_program_s_own_word_for_an_early_end(
    attempt: AttemptFolder, before: str, after: str, said: str | None
) -> None:
    want(attempt, step=r"step (\d+)/(\d+)")
    log(attempt, f"{before}step 12/30\n{after}", 10)
    assert ProgressReader().read(AttemptFiles(attempt)).said is None, "it may go on"
    assert ProgressReader().read(AttemptFiles(attempt, end=ScriptRecord(exit_code=0))).said == said
