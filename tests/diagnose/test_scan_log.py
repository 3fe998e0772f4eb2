"""Reading logs: any encoding, any length, many ranks at once, and never more memory than needed."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_launch.diagnose.diagnose import diagnose
from hpc_launch.diagnose.evidence import Evidence
from hpc_launch.diagnose.log_line import line_time, parse, plain
from hpc_launch.diagnose.scan_log import LAST_LINES, LogScanner, scan
from tests.diagnose.logs import BOOK, scanned, why
from tests.marks import prove

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

PIECES = st.sampled_from(
    [
        "Traceback (most recent call last):\n", '  File "a.py", line 3, in f\n', "    x()\n", OOM + "\n",
        "KeyError: 'a'\n",
        "  time      : 2025-11-20_12:43:59\n", "  rank      : 1 (local_rank: 1)\n", "  exitcode  : -9 (pid: 3)\n",
        "step 3/10 loss nan\n", "\r 5/9 [00:01<00:02", "\x1b[31mred\x1b[0m", "[rank3]: ", "=====\n",
        "srun: error: n1: task",
        "*** JOB 1 ON n CANCELLED AT 2025-01-01T00:00:00 ***\n", "99999999-99-99 99:99:99 ", "\ufeff", "\n", "0: ",
    ]
)  # fmt: skip


@settings(max_examples=150)
@given(st.lists(st.one_of(PIECES.map(str.encode), st.binary(max_size=60)), max_size=30), st.integers(1, 64))
def test_whatever_comes_there_is_an_answer(pieces: list[bytes], cut: int) -> None:
    data = b"".join(pieces)
    found = diagnose(Evidence(logs=(scan(BOOK, "x", [data[at : at + cut] for at in range(0, len(data), cut)]),)), BOOK)
    assert found.failure_class in BOOK.classes
    whole = diagnose(Evidence(logs=(scan(BOOK, "x", [data]),)), BOOK)
    if b"\xff\xfe" not in data[:2] and b"\xfe\xff" not in data[:2]:
        assert found.failure_class == whole.failure_class, "where the pieces are cut makes no difference"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings(encoding: str) -> None:
    found = why(("Fähre\n" + OOM + "\n").encode(encoding))
    assert (found.failure_class, found.evidence[0].line) == ("cuda_oom", 2)


def test_colours_and_binary_junk() -> None:
    found = why(b"\x00\xff\xfe\x80 junk\n\x1b[31m\x1b[1m" + OOM.encode() + b"\x1b[0m\n\x00\x01\x02")
    assert found.failure_class == "cuda_oom"
    assert "\x1b" not in found.evidence[0].text


def test_bars_that_draw_over_themselves() -> None:
    bars = "".join(f"\r{step}/5000 [00:01<00:10, 3.1it/s]" for step in range(5000))
    found = scanned(bars + "\n" + OOM + "\n")
    assert [hit.line for hit in found.hits if hit.rule == "cuda-oom"] == [2]
    assert found.last_total == 5000


def test_a_line_of_ten_megabytes() -> None:
    line = b"loss error failed " * (10_000_000 // 18)
    begun = time.process_time()
    found = why(line + b"\n" + OOM.encode() + b"\n")
    assert (found.failure_class, found.evidence[0].line) == ("cuda_oom", 2)
    assert time.process_time() - begun < 20


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
def test_memory_does_not_grow_with_the_log(ends: bool) -> None:
    dice, scanner = random.Random(1), LogScanner(BOOK, "big")
    lines = [f"[rank{n % 64}]: node{n}: NCCL WARN error {n * 7919} \n".encode() for n in range(2000)]
    endless = [bytes(dice.choices(b"ghijklmnopqrstuvwxyz", k=1 << 20))] * 15
    for chunk in lines:
        scanner.feed(chunk)
    tracemalloc.start()
    for chunk in 2 * (lines if ends else endless):
        scanner.feed(chunk)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert scanner.finish().lines == (3 * 2000 if ends else 2001)
    assert grown < (1_000_000 if ends else 10_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 3, 17, 29])
def test_a_failure_anywhere_in_a_large_log(at: int) -> None:
    """Most lines of a large log are not read one by one."""
    failure = (
        b'[rank5]: Traceback (most recent call last):\n[rank5]:   File "/home/u/model.py", line 3, in forward\n'
        b"[rank5]:     x()\n[rank5]: KeyError: 'caption'\n"
    )
    quiet = b"n1 reads the next part of the corpus\n" * 5_000
    parts = [quiet] * 30
    parts.insert(at, failure)
    hits = [hit for hit in scan(BOOK, "x", parts).hits if hit.rule == "py-exception"]
    assert [(hit.line, hit.rank, hit.frame_line) for hit in hits] == [(at * 5_000 + 4, 5, at * 5_000 + 2)]


@pytest.mark.parametrize(
    ("text", "rank", "node", "body"),
    [
        ("[rank3]: ValueError: x", 3, None, "ValueError: x"),
        ("[rank12]:[E1120 1 ProcessGroupNCCL.cpp:6] x", 12, None, "[E1120 1 ProcessGroupNCCL.cpp:6] x"),
        ("[1,5]<stderr>:ValueError: x", 5, None, "ValueError: x"),
        ("gpu017: ValueError: x", None, "gpu017", "ValueError: x"),
        ("gpu017: [rank2]: ValueError: x", 2, "gpu017", "ValueError: x"),
        ("g7:4411:4502 [3] NCCL WARN x", None, "g7", "g7:4411:4502 [3] NCCL WARN x"),
        ("(TrainWorker pid=81, ip=10.1.1.2) ValueError: x", None, "10.1.1.2", "ValueError: x"),
        ("sqlite3.OperationalError: x", None, None, "sqlite3.OperationalError: x"),
        ("train2.py: error: x", None, None, "train2.py: error: x"),
        ("[E1 socket.cpp:1028] [c10d] The client socket", None, None, "[E1 socket.cpp:1028] [c10d] The client socket"),
    ],
)
def test_who_wrote_a_line(text: str, rank: int | None, node: str | None, body: str) -> None:
    line = parse(text)
    assert (line.rank, line.node, line.body) == (rank, node, body)


def test_task_numbers_count_only_where_all_lines_have_one() -> None:
    labelled = "0: start\n1: start\n1: Traceback (most recent call last):\n1: ValueError: x\n"
    assert why(labelled).first_failure.rank == 1
    assert why("3: a list in a text\nValueError: x\n").first_failure.rank is None


HERE = time.mktime((2025, 11, 20, 12, 27, 38, 0, 0, -1))
"""By this machine's clock."""


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["2025-11-20T12:27:38Z x", "[2025-11-20 13:27:38+0100] x"], 1763641658.0),
        (["2025-11-20 12:27:38,500+00:00 x"], 1763641658.5),
        (["2025-11-20 12:27:38 x", "2025/11/20 12:27:38 x", "time      : 2025-11-20_12:27:38"], HERE),
        (["11/20/2025 12:27:38 x", "[Thu Nov 20 12:27:38 2025] x", "Nov 20 12:27:38 host kernel: x"], HERE),
        (["[E1120 12:27:38.000 a.cpp:1] x"], HERE),
        (["", "99:99:99", "2025-99-99 99:99:99", "12:27:38 loss", "Foo 20 12:27:38"], None),
    ],
)
def test_the_time_of_a_line(texts: list[str], expected: float | None) -> None:
    assert [line_time(text, 2025) for text in texts] == [expected] * len(texts)


def test_a_torn_traceback_of_two_ranks() -> None:
    torn = (
        "Traceback (most recent call last):\nTraceback (most recent call last):\n"
        '  File "a.py", line 3, in <module>\n  File "a.py", line 3, in <module>\nmain()\n    main()\n'
        "torch.cudatorch.cuda..OutOfMemoryErrorOutOfMemoryError: : CUDA out of memory. Tried to allocate 2 GiB.\n"
    )
    assert why(torn).failure_class == "cuda_oom"


def test_the_code_under_a_frame_is_no_message() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise OSError("No space left")\n'
    assert why(text + "ValueError: bad\n").failure_class == "user_code_error"


def test_a_long_line_keeps_its_ends() -> None:
    text = plain(b"begin " + b"x" * 100_000 + b" end")
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) < 5000


def letters(number: int) -> str:
    """A word for a number, without digits: lines that differ only in digits count as equal."""
    return "".join("abcdefghij"[int(digit)] for digit in f"{number:06d}")


@pytest.mark.parametrize("at", [prove(0), prove(9_000), 29_999])
def test_a_log_of_nothing_but_different_errors(at: int) -> None:
    """Few of its lines are matched, and the cause is found wherever it stands."""
    lines = [f"ERROR {letters(number)}: request failed for {letters(number * 7)}" for number in range(30_000)]
    lines[at] = OOM
    scanner = LogScanner(BOOK, "x")
    scanner.feed("".join(line + "\n" for line in lines).encode())
    found = diagnose(Evidence(logs=(scanner.finish(),)), BOOK)
    assert (found.failure_class, found.evidence[0].line) == ("cuda_oom", at + 1)
    assert scanner.lines.matched < 5_000


def test_the_first_and_the_last_of_many_different_errors_are_kept() -> None:
    text = "".join(f"RuntimeError: {letters(number)} is bad\n" for number in range(5_000))
    assert [hit.line for hit in scanned(text).hits] == [*range(1, 31), *range(4_971, 5_001)]


def test_steps_between_different_errors_count() -> None:
    text = "".join(f"ERROR {letters(number)} failed\nstep {number}/4000 loss 2.5\n" for number in range(1, 3_000))
    found = scanned(text)
    assert (found.last_step, found.last_total, found.steps_seen, found.bad_line) == (2_999, 4_000, 2_999, 5_997)


@pytest.mark.parametrize("begins", ["Traceback (most recent call last): ", prove("")])
def test_a_log_of_ever_new_sets_of_error_words_takes_limited_work(begins: str) -> None:
    """Its beginning and its end are read."""
    dice = random.Random(1)
    words = list(BOOK.table)
    lines = [begins + " ".join(dice.choices(words, k=60)) for _ in range(300)]
    lines[0] = lines[299] = OOM
    before = BOOK.searched
    scanner = LogScanner(BOOK, "x", units=1_000_000)
    scanner.feed("".join(line + "\n" for line in lines).encode())
    found = scanner.finish()
    assert BOOK.searched - before < 1_000_000 + LAST_LINES * 200_000
    assert {1, 300} <= {hit.line for hit in found.hits if hit.rule == "cuda-oom"}


@pytest.mark.parametrize("before", range(1, 4))
def test_a_traceback_across_two_blocks_of_a_large_log_is_read(before: int) -> None:
    """So many of its lines end the first block."""
    trace = [
        "Traceback (most recent call last):\n", '  File "train.py", line 3, in f\n', "    x()\n",
        "Oddity: qqq\n",
    ]  # fmt: skip
    filler, size = "all is well here\n", (1 << 20) - sum(map(len, trace[:before]))
    count = size // len(filler) - 1
    text = filler * count + "." * (size - count * len(filler) - 1) + "\n" + "".join(trace) + filler * 200_000
    assert [hit.line for hit in scan(BOOK, "x", [text.encode()]).hits] == [count + 5]


def test_progress_in_lines_with_a_word_of_a_rule_is_seen_throughout() -> None:
    steps = "".join(f"step {number}/90000 loss 2.5 error 0.1\n" for number in range(90_000))
    found = scanned(steps + "all is well here\n" * 100_000)
    assert found.last_step is not None
    assert found.last_step > 50_000


def test_a_log_of_tracebacks_takes_limited_work() -> None:
    scanner = LogScanner(BOOK, "x", units=1_000_000)
    scanner.feed(b"Traceback (most recent call last):\n" * 20_000 + f"{OOM}\n".encode())
    found = scanner.finish()
    assert scanner.lines.matched < 2_000 + LAST_LINES
    assert [hit.line for hit in found.hits if hit.rule == "cuda-oom"] == [20_001]


def test_what_is_read_of_a_log_without_a_budget() -> None:
    text = "".join(f"step {number}/300 loss 2.5\nERROR in {letters(number)}\n" for number in range(300))
    scanner = LogScanner(BOOK, "x", units=0)
    scanner.feed(f"{OOM}\n{text}{OOM}\n".encode())
    found = scanner.finish()
    assert (found.last_step, found.last_total, found.steps_seen) == (299, 300, 300)
    assert [hit.line for hit in found.hits if hit.rule == "cuda-oom"] == [602]
