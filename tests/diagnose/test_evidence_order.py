"""What the kernel, Slurm, the watcher and the launcher report decides before what was printed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hpc_launch.diagnose.evidence import AgentNote, NodeExit
from tests.diagnose.logs import why, why_run

LOST = "[rank{}]: ConnectionResetError: [Errno 104] Connection reset by peer\n"
OWN = "[rank{}]: ValueError: expected 4 columns, got 3\n"
FILE = "agent/node-0.jsonl"


def ended(rank: int, at: float, **how: Any) -> AgentNote:
    """The end of a rank as its watcher saw it."""
    kind = "left" if how.get("code") == 0 else "death" if how.get("code") or how.get("signal") else "spared"
    return AgentNote(how.pop("kind", kind), FILE, f"rank {rank} ended", "n1", rank, at, **{"oom_kill": False, **how})


KILLED = {
    "torchrun": "failed (exitcode: -9) local_rank: 1 (pid: 207) of binary: python3\n",
    "deepspeed": "[launch.py:259:sigkill_handler] ['python', '--local_rank=1'] exits with return code = -9\n",
    "deepspeed, folded": "[launch.py:259:sigkill_handler] ['rank.sh', '--local_rank=1'] exits with return code = 137\n",
    "a shell": "script.sh: line 9: 812 Killed                  setsid bash node.sh\n",
    "srun, folded": "srun: error: n1: task 1: Exited with exit code 137\n",
}


@pytest.mark.parametrize("words", KILLED.values(), ids=KILLED)
@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        (False, ("segfault_or_abort", "RETRY")),
        ("seen", ("segfault_or_abort", "RETRY")),
        ("whole node", ("segfault_or_abort", "RETRY")),
        (True, ("host_oom", "RETRY_CHANGED")),
        (None, ("host_oom", "RETRY_CHANGED")),
    ],
)
def test_a_sigkill_is_a_lack_of_memory_only_where_one_was_counted_or_nobody_counted(
    words: str, counted: bool | str | None, expected: tuple[str, str]
) -> None:
    notes = {
        False: (ended(1, 5.0),),
        "seen": (ended(1, 5.0, signal=9),),
        "whole node": (AgentNote("spared", FILE, "all ended", "n1", None, 5.0),),
        True: (ended(1, 5.0, kind="oom_kill", oom_kill=True),),
        None: (),
    }[counted]
    found = why_run("FAILED", 137, {"batch.log": words}, notes=notes, nodes=("n1",))
    assert (
        found.failure_class,
        found.default_verdict if found.default_verdict != "STOP" else "RETRY_CHANGED",
    ) == expected


FIRST = [
    pytest.param((ended(1, 5.0, signal=9), ended(0, 5.1)), LOST.format(0), "segfault_or_abort", 1, id="killed"),
    pytest.param((ended(1, 5.0, signal=2), ended(0, 5.1)), LOST.format(0), "cancelled_by_user", 1, id="interrupted"),
    pytest.param((ended(1, 5.0, code=0), ended(0, 5.1)), LOST.format(0), "unknown", 1, id="left with 0"),
    pytest.param(
        (ended(1, 5.0, code=0), ended(0, 5.1, code=1)),
        "step 6/6 loss 1\n" + LOST.format(0),
        "nccl_system_error",
        0,
        id="left when it was done",
    ),
    pytest.param((ended(1, 5.0, code=3), ended(0, 5.1)), LOST.format(0), "user_code_error", 1, id="a code and no word"),
    pytest.param((ended(1, 5.0), ended(0, 5.1)), LOST.format(0), "segfault_or_abort", 1, id="nobody saw how"),
    pytest.param((ended(1, 5.0), ended(0, 5.1)), LOST.format(0) + LOST.format(1), "nccl_system_error", 1, id="by time"),
    pytest.param(
        (ended(0, 5.0), ended(1, 5.0)), LOST.format(0) + LOST.format(1), "nccl_system_error", None, id="at once"
    ),
    pytest.param(
        (ended(0, 5.0, code=1), ended(1, 5.0, code=0)), LOST.format(0), "unknown", 1, id="left at that moment"
    ),
    pytest.param(
        (ended(0, 5.0, code=1), ended(1, 5.0, signal=15)),
        LOST.format(0),
        "nccl_system_error",
        None,
        id="nothing decides",
    ),
    pytest.param(
        (ended(0, 5.0), ended(1, 5.1)), LOST.format(0) + OWN.format(1), "user_code_error", 1, id="slow to end"
    ),
    pytest.param((ended(0, 5.0, code=1), ended(1, 5.1)), OWN.format(1), "user_code_error", 1, id="the other is silent"),
    pytest.param(
        (ended(0, 5.2, signal=15, raised=4.9), ended(1, 5.0, signal=9)),
        LOST.format(0),
        "segfault_or_abort",
        1,
        id="seen late",
    ),
    pytest.param(
        (ended(0, 5.2, raised=5.0), ended(1, 5.1, raised=4.9)),
        LOST.format(0) + LOST.format(1),
        "nccl_system_error",
        1,
        id="raised first",
    ),
    pytest.param(
        (ended(1, 5.0, code=139), ended(0, 5.1)), LOST.format(0), "segfault_or_abort", 1, id="a folded signal"
    ),
    pytest.param((ended(0, 5.0, signal=11), ended(1, 5.1, signal=15)), "", "segfault_or_abort", 0, id="not a word"),
    pytest.param(
        (ended(0, 5.1, raised=4.9), ended(1, 5.0)),
        "[launch.py:259:sigkill_handler] ['rank.sh', '--local_rank=0'] exits with return code = 1\n",
        "segfault_or_abort",
        1,
        id="its words are lost",
    ),
    pytest.param(
        (ended(0, 5.2, raised=5.0), ended(1, 5.2, raised=5.0), ended(2, 5.1, code=2)),
        LOST.format(0) + LOST.format(1),
        "user_code_error",
        2,
        id="two lost it at once",
    ),
    pytest.param(
        (ended(0, 5.2, code=1, raised=5.0), ended(1, 5.1, signal=6)),
        LOST.format(0),
        "segfault_or_abort",
        1,
        id="aborted without a word",
    ),
    *(
        pytest.param(
            (ended(0, 5.0, code=1, raised=4.9), ended(1, 5.1, signal=number)),
            LOST.format(0),
            kind,
            1,
            id=f"late {number}",
        )
        for number, kind in ((1, "cancelled_by_user"), (3, "segfault_or_abort"), (24, "segfault_or_abort"))
    ),
    pytest.param(
        (ended(0, 5.0, code=1, raised=4.9), ended(1, 5.1, signal=9)),
        LOST.format(0),
        "nccl_system_error",
        0,
        id="ended by srun",
    ),
]


@pytest.mark.parametrize(("notes", "log", "kind", "rank"), FIRST)
def test_the_first_to_end(notes: tuple[AgentNote, ...], log: str, kind: str, rank: int | None) -> None:
    found = why_run("FAILED", 1, {"batch.log": "", "node-0.log": log}, notes=notes, nodes=("n1",))
    assert (found.failure_class, found.first_failure.rank) == (kind, rank)


HUNG = AgentNote("hang", "agent/hang.json", "no output and no work", "n1", 0, 4.0, noticed=20.0)


@pytest.mark.parametrize(
    ("gone", "log", "kind", "rank"),
    [
        (ended(1, 5.0, code=0), "step 3/6 loss 1\n", "unknown", 1),
        (ended(1, 5.0, code=0), "step 6/6 loss 1\n", "hang_no_progress", 0),
        (ended(1, 5.0), "step 3/6 loss 1\n", "segfault_or_abort", 1),
        (ended(1, 5.0, code=1), OWN.format(1), "user_code_error", 1),
        (ended(1, 21.0, signal=6), "step 3/6 loss 1\n", "hang_no_progress", 0),
    ],
)
def test_a_rank_that_ended_before_the_others_hung(gone: AgentNote, log: str, kind: str, rank: int) -> None:
    found = why_run("FAILED", 143, {"batch.log": "", "node-0.log": log}, notes=(HUNG, gone), nodes=("n1",))
    assert (found.failure_class, found.first_failure.rank) == (kind, rank)


def test_srun_names_the_task_that_was_interrupted_first() -> None:
    logs = {
        "batch.log": "srun: n2: task 1: Interrupt\nsrun: Terminating StepId=7.0\nsrun: error: n1: task 0: Terminated\n",
        "node-0.rank-0.log": "ConnectionResetError: Connection closed by peer\n",
        "node-1.rank-1.log": "KeyboardInterrupt\n",
    }
    found = why_run("FAILED", 130, logs)
    assert (found.failure_class, found.first_failure.rank, found.first_failure.node) == ("cancelled_by_user", 1, "n2")


def test_the_file_with_its_code_tells_how_a_rank_ended() -> None:
    exits = (NodeExit("n1", 0, "logs/rank-0.exit", 5.0, 0), NodeExit("n1", 137, "logs/rank-1.exit", 6.0, 1))
    notes = (ended(1, 5.9), ended(0, 6.5))
    found = why_run("FAILED", 1, {"node-0.log": LOST.format(0)}, notes=notes, node_exits=exits, nodes=("n1",))
    assert (found.failure_class, found.default_verdict, found.first_failure.rank) == ("segfault_or_abort", "RETRY", 1)


@pytest.mark.parametrize("code", [137, 3])
def test_files_with_codes_have_one_clock_while_the_watcher_of_a_node_may_be_late(code: int) -> None:
    """srun ended rank 0, which had lost rank 1, whose watcher was held up."""
    exits = (NodeExit("n1", 143, "logs/rank-0.exit", 6.0, 0), NodeExit("n2", code, "logs/rank-1.exit", 5.0, 1))
    notes = (ended(0, 6.0, raised=5.1), ended(1, 6.4))
    found = why_run("FAILED", 1, {"node-0.log": LOST.format(0)}, notes=notes, node_exits=exits)
    assert (found.cause, found.first_failure.rank) == (
        "task_died_by_signal" if code == 137 else "task_exit_nonzero",
        1,
    )


@pytest.mark.parametrize("who", ["watcher", "torchrun", "files"])
def test_where_all_were_asked_to_end_the_code_of_the_step_is_no_cause(who: str) -> None:
    logs = {
        "batch.log": "[hpc-launch 2026-11-26 06:54:59] the step ended with exit code 1\n",
        "node-0.log": LISTED.format(rank=1, code=-15) + LISTED.format(rank=0, code=-15) if who == "torchrun" else "",
    }
    notes = (ended(0, SEEN, signal=15), ended(1, SEEN, signal=15)) if who == "watcher" else ()
    exits = [NodeExit("n1", 143, f"logs/rank-{rank}.exit", SEEN, rank) for rank in (0, 1)] if who == "files" else []
    found = why_run("FAILED", 1, logs, notes=notes, node_exits=tuple(exits), nodes=("n1",))
    assert (found.failure_class, found.cause) == ("unknown", "task_died_by_signal")


def test_a_rank_that_nobody_saw_end_left_with_0_where_the_whole_step_did() -> None:
    found = why_run(
        "COMPLETED", 0, {"batch.log": ""}, notes=(ended(0, 5.1), ended(1, 5.0, code=0)), unfinished="step 5 of 14"
    )
    assert (found.failure_class, found.default_verdict) == ("unknown", "STOP")


def test_a_rank_that_ended_before_its_watcher_saw_it_is_the_first_failure() -> None:
    exits = (NodeExit("n1", 143, "logs/rank-0.exit", 9.0, 0), NodeExit("n2", 7, "logs/rank-1.exit", 5.0, 1))
    found = why_run("FAILED", 7, {"batch.log": ""}, notes=(ended(0, 9.0),), node_exits=exits)
    assert (found.failure_class, found.first_failure.rank) == ("user_code_error", 1)


SEEN = 1_800_000_000.0
LISTED = f"""Root Cause (first observed failure):
[0]:
  time      : {time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(SEEN))}
  host      : localhost
  rank      : {{rank}} (local_rank: {{rank}})
  exitcode  : {{code}} (pid: 30772)
  error_file: <N/A>
============================================================
"""
WHOLE = AgentNote("spared", FILE, "nothing was killed for lack of memory", "n1", None, SEEN + 9, oom_kill=False)


@pytest.mark.parametrize("notes", [(WHOLE,), (ended(0, SEEN + 0.2, signal=15),), (ended(0, SEEN + 0.2), WHOLE)])
def test_a_rank_that_ended_before_its_watcher_saw_it_is_in_torchruns_list(notes: tuple[AgentNote, ...]) -> None:
    found = why_run(
        "FAILED", 1, {"batch.log": "", "node-0.log": LISTED.format(rank=1, code=137)}, notes=notes, nodes=("n1",)
    )
    assert (found.failure_class, found.default_verdict, found.first_failure.rank) == ("segfault_or_abort", "RETRY", 1)


def test_a_rank_that_nobody_saw_end_left_with_0_where_torchrun_does_not_list_it() -> None:
    text = "step 6/6 loss 1\n" + LOST.format(0) + LISTED.format(rank=0, code=1)
    notes = (ended(0, SEEN + 0.1, code=1), ended(1, SEEN))
    found = why_run("FAILED", 1, {"batch.log": "", "node-0.log": text}, notes=notes, nodes=("n1",))
    assert (found.failure_class, found.first_failure.rank) == ("nccl_system_error", 0)


def test_a_code_of_137_is_no_lack_of_memory_where_the_node_counted_none() -> None:
    exits = (NodeExit("", 137, "logs/rank-1.exit", SEEN, 1),)
    found = why_run("FAILED", 1, {"batch.log": ""}, notes=(WHOLE,), node_exits=exits, nodes=("n1",))
    assert (found.failure_class, found.default_verdict) == ("segfault_or_abort", "RETRY")


TRACE = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 40, in main\n    go()\n'
OF_URLLIB = '  File "/usr/lib/python3.11/urllib/request.py", line 1391, in http_open\n    r\n'
OF_SOCKET = '  File "/usr/lib/python3.11/socket.py", line 851, in create_connection\n    raise exceptions[0]\n'
OF_C10D = '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 9, in all_reduce\n    work.wait()\n'
OF_REQUESTS = '  File "/v/site-packages/urllib3/connection.py", line 9, in _new_conn\n    raise\n'


@pytest.mark.parametrize("line", [
    "OSError: [Errno 113] No route to host", "OSError: [Errno 101] Network is unreachable",
    "ConnectionRefusedError: [Errno 111] Connection refused", "TimeoutError: [Errno 110] Connection timed out",
    "socket.gaierror: [Errno -2] Name or service not known",
    "socket.gaierror: [Errno -3] Temporary failure in name resolution",
])  # fmt: skip
@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ("", "nccl_system_error"),
        (OF_SOCKET, "nccl_system_error"),
        (OF_C10D, "nccl_system_error"),
        (OF_URLLIB + OF_SOCKET, "network_download_error"),
        (OF_REQUESTS + OF_SOCKET, "network_download_error"),
    ],
)
def test_the_code_that_raised_it_tells_what_a_connection_was_for(line: str, frames: str, expected: str) -> None:
    assert why(f"{TRACE}{frames}{line}\n").failure_class == expected


def test_a_timeout_with_the_name_of_a_file_is_storage() -> None:
    line = "TimeoutError: [Errno 110] Connection timed out: '/scratch/shard.bin'"
    assert why(f"{TRACE}{line}\n").failure_class == "filesystem_error"


def test_the_command_that_a_launcher_prints_is_no_evidence() -> None:
    command = "['rank.sh', '--note', 'OSError: [Errno 28] No space left on device']"
    text = (
        f"[2026-11-26 01:47:49,318] [INFO] [launch.py:245:main] process 69 spawned with command: {command}\n"
        f"[rank0]: KeyError: 'lr'\n"
        f"[2026-11-26 01:47:51,383] [ERROR] [launch.py:259:sigkill_handler] {command} exits with return code = 1\n"
    )
    found = why(text)
    assert (found.failure_class, found.first_failure.rank) == ("user_code_error", 0)


@pytest.mark.parametrize(
    "line", ["Note: node n2 is down", "node n2 lost contact, retry", "node gpu7 has failed before"]
)
def test_a_line_of_a_program_about_a_node_is_not_believed(line: str) -> None:
    assert why(f"{line}\nValueError: bad sample\n").failure_class == "user_code_error"
    assert why(f"{line}\n").failure_class == "unknown"
