"""Which rank did not come, from the stacks of a hang."""

from __future__ import annotations

import pytest

from hpc_launch.diagnose.hang_stacks import Frame, Stand, late, not_arrived, stack, stacks_in_log, stand

SPY = """\
Process 4711: python train.py
Python v3.11.7 (/opt/python/bin/python3.11)

Thread 4720 (active): "Thread-1"
    run (threading.py:982)

Thread 4711 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    wrapper (torch/distributed/c10d_logger.py:83)
    step (train.py:40)
    <module> (train.py:77)
"""

FAULT = """\
[rank{rank}]: step 3 loss 2.0
[rank{rank}]: Fatal Python error: Aborted
[rank{rank}]:
[rank{rank}]: Thread 0x00007f0000000001 (most recent call first):
[rank{rank}]:   File "/usr/lib/python3.11/threading.py", line 327 in wait
[rank{rank}]:
[rank{rank}]: Current thread 0x00007f0000000002 (most recent call first):
[rank{rank}]:   File "{file}", line {line} in {call}
[rank{rank}]:   File "/job/train.py", line 77 in <module>
[rank{rank}]:
[rank{rank}]: Extension modules: numpy
"""


def _fault(rank: int, file: str, line: int, call: str) -> str:
    return FAULT.format(rank=rank, file=file, line=line, call=call)


def test_py_spy_gives_the_main_thread() -> None:
    frames = stack(SPY.splitlines())
    assert [str(frame) for frame in frames[:1]] == ["torch/distributed/distributed_c10d.py:2501 in all_reduce"]
    assert frames[-1].call == "<module>"


TORCH = "/v/torch/distributed/distributed_c10d.py"


@pytest.mark.parametrize(
    ("places", "missing"),
    [
        (
            [(TORCH, 2501, "all_reduce"), ("/job/data.py", 12, "load_next_batch")],
            {1: "/job/data.py:12 in load_next_batch"},
        ),
        # With NCCL the call returns at once; all wait where they first look at a result.
        ([("/job/train.py", 40 if rank != 2 else 12, "step") for rank in range(4)], {2: "/job/train.py:12 in step"}),
        ([(TORCH, 9, "barrier")] * 3, {}),
        ([("/job/a.py", 1, "f"), ("/job/b.py", 2, "g")], {}),
    ],
    ids=["outside the collective", "the odd one out", "all wait", "two that differ"],
)
def test_which_rank_did_not_come(places: list[tuple[str, int, str]], missing: dict[int, str]) -> None:
    text = "".join(_fault(rank, *place) for rank, place in enumerate(places))
    found = not_arrived(stacks_in_log(text.splitlines()))
    assert {rank: str(frame) for rank, frame in found.items()} == missing


def test_numbers_that_no_program_has_are_no_frames() -> None:
    """Python refuses to convert a number of more than 4300 digits."""
    text = _fault(0, "/job/train.py", 40, "step").replace("40", "9" * 5000)
    assert stacks_in_log(text.splitlines())[0][0].line == 77
    assert stacks_in_log([f"[{'9' * 5000}]: Fatal Python error: Aborted"]) == {}


COLLECTIVE = (Frame("/v/torch/distributed/distributed_c10d.py", 9, "all_reduce"),)
RECEIVES, SLEEPS = Stand(state="S", kernel="wait_woken"), Stand(state="S", kernel="hrtimer_nanosleep")
SPINS = Stand(state="R", kernel="running")
POLLS = Stand(state="S", kernel="hrtimer_nanosleep", polls=True)
STOPPED, IN_THE_DISK = Stand(state="T", kernel="do_signal_stop"), Stand(state="D", kernel="folio_wait_bit_common")


@pytest.mark.parametrize(
    ("stands", "some_left", "expected"),
    [
        ([RECEIVES, STOPPED], False, [1]),
        ([STOPPED, Stand(COLLECTIVE, "S", "futex_wait_queue")], False, [0]),
        ([RECEIVES, IN_THE_DISK, RECEIVES], False, [1]),
        ([RECEIVES, SLEEPS], False, [1]),
        ([SPINS, RECEIVES], False, [0]),
        ([Stand(COLLECTIVE, "R", "running"), SPINS], False, [1]),
        ([RECEIVES, RECEIVES], False, []),
        ([RECEIVES, POLLS], False, [1]),
        ([SPINS, POLLS], False, [0]),
        ([POLLS, SLEEPS, POLLS], False, [1]),
        ([POLLS, POLLS], False, []),
        ([SLEEPS, SLEEPS], False, []),
        ([STOPPED, STOPPED], False, []),
        ([SLEEPS], False, []),
        ([STOPPED], False, [0]),
        ([SLEEPS], True, [0]),
        ([RECEIVES], True, [0]),
    ],
)
def test_the_rank_that_the_others_wait_for(stands: list[Stand], some_left: bool, expected: list[int]) -> None:
    assert list(late(dict(enumerate(stands)), some_left=some_left)) == expected


def test_what_the_watcher_writes_about_a_rank_is_read() -> None:
    found = stand("waits in the kernel at: do_signal_stop\nstate: T\n" + SPY)
    assert (found.state, found.kernel, found.frames[-1].call) == ("T", "do_signal_stop", "<module>")
    assert str(found) == "was stopped (state T)"
    assert not found.polls
    assert stand("waits in the kernel at: hrtimer_nanosleep\nstate: S\npolls: yes\n") == POLLS
    assert stand("") == Stand()
