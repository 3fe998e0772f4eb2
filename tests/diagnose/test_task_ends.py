"""What srun reports about the first task that ended, and the first host about the others where ssh starts them."""

from __future__ import annotations

import pytest

from hpc_launch.diagnose.decide_verdict import default_action
from tests.diagnose.logs import why_run

ENDED = """\
srun: error: n2: task 1: {}
srun: launch/slurm: _step_signal: Terminating StepId=20.0
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=20.0
[hpc-launch 2025-11-20 11:02:08] the step ended with exit code {}
"""
RANKS = {"node-0.rank-0.log": "step 7/20 loss 1.4\n", "node-1.rank-1.log": "dataset fingerprint mismatch\n"}


@pytest.mark.parametrize(
    ("words", "code", "cause"),
    [
        ("Terminated", 143, "task_died_by_signal"),
        ("Interrupt", 130, "cancelled"),
        ("Hangup", 129, "cancelled"),
        ("User defined signal 1", 138, "task_died_by_signal"),
        ("User defined signal 2", 140, "task_died_by_signal"),
        ("CPU time limit exceeded", 152, "task_died_by_signal"),
    ],
)
def test_a_signal_ended_the_first_task(words: str, code: int, cause: str) -> None:
    found = why_run("FAILED", code, {"batch.log": ENDED.format(words, code), **RANKS})
    assert (found.cause, default_action(found), found.confidence) == (cause, "STOP", "low")
    assert (found.first_failure.node, found.first_failure.rank) == ("n2", 1)
    assert found.evidence[0].text == f"srun: error: n2: task 1: {words}"


def test_a_task_that_srun_terminated_after_another_is_not_the_cause() -> None:
    found = why_run("FAILED", 143, {"batch.log": ENDED.format("Exited with exit code 7", 143), **RANKS})
    assert (found.cause, found.first_failure.rank) == ("task_exit_nonzero", 1)
    killed = why_run("FAILED", 143, {"batch.log": ENDED.format("Killed", 137), **RANKS})
    assert (killed.failure_class, killed.first_failure.rank) == ("segfault_or_abort", 1)


def test_the_last_line_of_a_task_that_failed_without_a_known_message_is_quoted() -> None:
    found = why_run("FAILED", 1, {"batch.log": ENDED.format("Exited with exit code 1", 1), **RANKS})
    assert [(quote.file, quote.text) for quote in found.evidence] == [
        ("batch.log", "srun: error: n2: task 1: Exited with exit code 1"),
        ("node-1.rank-1.log", "dataset fingerprint mismatch"),
    ]
    assert "last line" in found.advice


def test_the_record_of_the_script_is_not_a_message_of_deepspeed() -> None:
    found = why_run("FAILED", 3, {"batch.log": "[hpc-launch 2025-11-20 11:02:08] the step ended with exit code 3\n"})
    assert (found.failure_class, found.cause, found.first_failure.rank) == (
        "user_code_error",
        "task_exit_nonzero",
        None,
    )


def test_a_checkpoint_that_the_script_skipped_is_not_the_cause() -> None:
    skipped = "[hpc-launch 2025-11-20 11:02:01] skipped step-8000: this checkpoint is incomplete\n"
    rank = {"node-0.rank-0.log": "Traceback (most recent call last):\nValueError: bad sample\n"}
    found = why_run("FAILED", 1, {"batch.log": skipped, **rank})
    assert (found.failure_class, found.first_failure.rank) == ("user_code_error", 0)


STAMP = "[hpc-launch 2026-11-23 07:28:12] "
USED = "n2 is in use by bob: run gpt-261123-091500-7a1c, job ssh-12, since 2026-11-23 09:15"
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4100\n"


@pytest.mark.parametrize(
    ("line", "cause", "verdict"),
    [
        (
            "the connection ended with code 255: Connection to n2 closed by remote host.",
            "connection",
            "RETRY_ELSEWHERE",
        ),
        ("the connection ended with code 255: ssh: connect to host n2 port 22: No route to host", "connection", None),
        ("the connection ended with code 255: Host key verification failed.", "connection", None),
        ("the connection ended with code 255: srun: error: Node failure on n1", "connection", None),
        ("the connection ended with code 255: torch.OutOfMemoryError: CUDA out of memory.", "connection", None),
        (f"its part of the job ended with code 75: {USED}", "in_use", "RETRY_ELSEWHERE"),
        ("its part of the job ended with code 127: n2 has no python3", "part", "STOP"),
    ],
)
def test_the_host_is_named_and_may_be_replaced(line: str, cause: str, verdict: str | None) -> None:
    logs = {"batch.log": f"{STAMP}n2: {line}\n{STAMP}ssh ended with exit code 255\n", "node-0.rank-0.log": LOST}
    found = why_run("FAILED", 255, logs)
    assert (found.failure_class, found.cause, found.level) == ("node_failure", f"host_{cause}", "infrastructure")
    assert (found.first_failure.node, found.bad_nodes) == ("n2", ("n2",))
    assert default_action(found) == (verdict or "RETRY_ELSEWHERE")
    assert not found.proven_nodes, "one lost connection says nothing to other runs"


def test_a_spare_that_is_lost_is_no_cause() -> None:
    lost = f"{STAMP}the job goes on without the spare n3: the connection ended with code 255: CUDA out of memory."
    found = why_run("FAILED", 3, {"batch.log": f"{lost}\n", "node-0.rank-0.log": "ValueError: bad sample\n"})
    assert (found.failure_class, found.bad_nodes) == ("user_code_error", ())


def test_a_training_cannot_blame_a_host() -> None:
    forged = f"{STAMP}n2: the connection ended with code 255: gone\n"
    forged += f"{STAMP}n2: its part of the job ended with code 75: {USED}\n"
    found = why_run("FAILED", 3, {"batch.log": "", "node-0.rank-0.log": f"{forged}ValueError: bad sample\n"})
    assert (found.failure_class, found.bad_nodes) == ("user_code_error", ())
