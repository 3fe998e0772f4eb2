"""Which node a failure of a run is blamed on, and what only looks like evidence against a node."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_launch.diagnose.diagnose import diagnose
from hpc_launch.diagnose.evidence import (
    AgentNote,
    DriverFacts,
    EndFacts,
    Evidence,
    LogScan,
    WorkerFailure,
)
from tests.diagnose.logs import BOOK, scanned, why, why_run

REBOOTED = """\
[hpc-launch 2025-11-20 12:27:00] job 16 on n[1-2], attempt in /runs/a/attempts/001
srun: error: Aborting, io error and missing step on node 1
srun: Job step aborted: Waiting up to 12 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 16.0 ON n1 CANCELLED AT 2025-11-20T12:27:26 ***
srun: error: n1: tasks 0-1: Killed
"""
RANKS = {"node-0.rank-0.log": "step 1\n", "node-1.rank-1.log": "step 1\n"}


def test_an_index_names_the_node_that_rebooted_and_not_the_healthy_one() -> None:
    found = why_run("FAILED", 137, {"batch.log": REBOOTED, **RANKS})
    assert (found.failure_class, found.bad_nodes, found.proven_nodes) == ("node_failure", ("n2",), ("n2",))
    assert (found.first_failure.node, found.first_failure.rank) == ("n2", None)


@pytest.mark.parametrize("line", ["missing step on node 7", "missing step on node"])
def test_an_index_that_is_no_node_of_the_job_blames_nobody(line: str) -> None:
    found = why_run("FAILED", 137, {"batch.log": REBOOTED.replace("missing step on node 1", line), **RANKS})
    assert (found.failure_class, found.bad_nodes, found.first_failure.node) == ("node_failure", (), None)
    assert why(REBOOTED).bad_nodes == (), "the nodes of the job are not known"


def test_the_node_that_wrote_the_message_of_a_failure_is_not_the_one_that_failed() -> None:
    text = (
        "slurmstepd-n1: error: *** JOB 35 ON n1 CANCELLED AT 2025-11-20T12:33:37 DUE TO NODE FAILURE, SEE SLURMCTLD "
        "LOG FOR DETAILS ***\nsrun: error: n1: task 0: Killed\n"
    )
    found = why_run("NODE_FAIL", 143, {"batch.log": text, **RANKS})
    assert (found.failure_class, found.bad_nodes, found.first_failure.node) == ("node_failure", (), None)
    named = why_run("NODE_FAIL", 143, {"batch.log": text + "srun: error: Node failure on n2\n", **RANKS})
    assert (named.bad_nodes, named.first_failure.node) == (("n2",), "n2")


@pytest.mark.parametrize(
    "line",
    [
        "Note: node n2 is down",
        "error: node n2 not responding, setting DOWN",
        "update_node: node n2 reason set to: bad",
        "JobState=NODE_FAIL Reason=NodeDown",
        "srun: error: n2: task 5: Node failure (as my test would print it)",
    ],
)
def test_a_program_that_prints_the_words_of_slurm_blames_no_node(line: str) -> None:
    found = why_run("FAILED", 1, {"batch.log": "", "node-0.log": f"{line}\nValueError: bad sample\n"})
    assert (found.failure_class, found.bad_nodes, found.proven_nodes) == ("user_code_error", (), ())


def test_the_same_words_count_where_slurm_writes() -> None:
    found = why_run("FAILED", 1, {"batch.log": "srun: error: Node failure on n2\n", **RANKS})
    assert (found.failure_class, found.proven_nodes) == ("node_failure", ("n2",))
    said = why_run("FAILED", 1, {"batch.log": "my prelude: node n2 is down\n", **RANKS})
    assert said.proven_nodes == (), "the batch log also holds what the prelude prints"


PROLOG = """\
[2026-11-22T11:44:36.647] error: Prolog failure on node n2
srun: error: Task launch for StepId=1.0 failed on node n2: Job prolog failed
[2026-11-22T11:44:36.788] error: *** JOB 1 ON n1 CANCELLED AT 2026-11-22T11:44:36 DUE to SIGNAL Terminated ***
"""


def test_a_job_that_slurm_cancelled_for_a_failed_prolog_was_not_cancelled_by_a_user() -> None:
    found = why_run("CANCELLED", 182, {"batch.log": PROLOG, **RANKS})
    assert (found.failure_class, found.default_verdict) == ("node_failure", "RETRY_ELSEWHERE")
    assert (found.bad_nodes, found.proven_nodes, found.first_failure.node) == (("n2",), ("n2",), "n2")
    printed = why_run("CANCELLED", 143, {"batch.log": "", "node-0.log": PROLOG})
    assert printed.failure_class == "cancelled_by_user"


def test_slurmstepd_still_counts_in_the_log_of_a_rank() -> None:
    text = "slurmstepd-n2: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been killed.\n"
    assert why_run("FAILED", 1, {"batch.log": "", "node-1.log": text}).failure_class == "host_oom"


def test_a_broken_gpu_is_avoided_by_the_run_but_proven_only_by_the_watcher() -> None:
    log = {"node-1.log": "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"}
    found = why_run("FAILED", 1, log)
    assert (found.failure_class, found.bad_nodes, found.proven_nodes) == ("gpu_hardware", ("n2",), ())
    note = AgentNote("gpu", "agent/node-1.jsonl", "GPU 0: 1 uncorrectable memory error", "n2", time=5.0)
    assert why_run("FAILED", 1, log, notes=(note,)).proven_nodes == ("n2",)


def test_a_killed_batch_shell_is_tried_again() -> None:
    found = why_run("FAILED", logs=RANKS, began=True, signal=9, reason="JobLaunchFailure", end=None, exit_code=0)
    assert (found.failure_class, found.cause, found.default_verdict) == ("segfault_or_abort", "script_killed", "RETRY")
    assert found.bad_nodes == ()


def test_a_batch_shell_that_is_killed_before_it_begins_is_tried_again() -> None:
    """Nothing trained. The user did not do it: Slurm reports a job that somebody cancelled as such."""
    killed: dict[str, Any] = {"logs": {}, "began": False, "signal": 9, "end": None, "exit_code": 0}
    found = why_run("FAILED", reason="RaisedSignal:9(Killed)", **killed)
    assert (found.failure_class, found.cause, found.default_verdict) == ("segfault_or_abort", "script_killed", "RETRY")
    assert "before" in found.evidence[0].text
    assert why_run("CANCELLED by 4242", **killed).default_verdict == "STOP"


def test_a_job_that_slurm_cancelled_by_itself_after_a_restart_is_tried_again() -> None:
    """On the same nodes, which did nothing wrong."""
    killed: dict[str, Any] = {"logs": RANKS, "began": True, "end": None, "exit_code": 0}
    found = why_run("CANCELLED", lost_start=5.0, **killed)
    assert (found.failure_class, found.cause, found.default_verdict) == ("node_failure", "controller_restart", "RETRY")
    assert (found.bad_nodes, found.proven_nodes, found.first_failure.node) == ((), (), None)
    assert why_run("CANCELLED", **killed).default_verdict == "STOP"
    assert why_run("CANCELLED", lost_start=5.0, cancelled_by="alice", **killed).default_verdict == "STOP"


@pytest.mark.parametrize("signal", [0, 53])
def test_an_output_that_cannot_be_opened_is_an_error_of_the_configuration(signal: int) -> None:
    found = why_run("FAILED", signal=signal, reason="JobLaunchFailure", end=None, exit_code=0)
    assert (found.failure_class, found.cause) == ("config_error", "output_path_unwritable")


ABORTED = "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.\n"
KILLED = (
    "srun: error: n2: task 1: Killed\nsrun: launch/slurm: _step_signal: Terminating StepId=1.0\n"
    "srun: error: n1: task 0: Killed\n"
)
STEP = {
    "node-0.rank-0.log": "slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-22T08:14:10 ***\n",
    "node-1.rank-1.log": "step 1\n",
}


def test_a_cancelled_step_is_a_cancellation_and_a_killed_rank_is_not() -> None:
    found = why_run("FAILED", 137, {"batch.log": ABORTED + KILLED, **STEP}, steps=(("0", "CANCELLED", "0:9"),))
    assert (found.failure_class, found.default_verdict) == ("cancelled_by_user", "STOP")
    assert found.bad_nodes == ()
    killed = why_run("FAILED", 137, {"batch.log": KILLED, **STEP}, steps=(("0", "CANCELLED", "0:15"),))
    assert (killed.failure_class, killed.first_failure.rank) == ("segfault_or_abort", 1)
    printed = why_run("FAILED", 137, {"batch.log": KILLED, **STEP, "node-1.rank-1.log": ABORTED})
    assert printed.failure_class == "segfault_or_abort"


def test_slurm_26_05_writes_the_time_in_place_of_slurmstepd() -> None:
    ended = "[2026-11-22T08:45:44.051] error: *** {} 1.0 ON n1 CANCELLED AT 2026-11-22T08:45:44 DUE {} ***\n"
    step = {**STEP, "node-0.rank-0.log": ended.format("STEP", "to SIGNAL Killed")}
    assert why_run("FAILED", 137, {"batch.log": ABORTED + KILLED, **step}).failure_class == "cancelled_by_user"

    failed = {**STEP, "node-0.rank-0.log": ended.format("STEP", "TO TASK FAILURE")}
    assert why_run("FAILED", 137, {"batch.log": KILLED, **failed}).failure_class == "segfault_or_abort"

    reset = "srun: error: _server_read: fd 17 error reading header: Connection reset by peer\n"
    found = why_run("FAILED", 137, {"batch.log": reset + REBOOTED, **step})
    assert (found.failure_class, found.proven_nodes) == ("node_failure", ("n2",))

    batch = ended.format("JOB", "to SIGNAL Killed") + ABORTED + KILLED.replace("Killed", "Terminated")
    reason = "RaisedSignal:9(Killed)"
    found = why_run("FAILED", logs={"batch.log": batch}, began=True, signal=9, reason=reason, end=None, exit_code=0)
    assert found.cause == "script_killed"

    oom = "[2026-11-22T08:45:44.051] error: Detected 1 oom_kill event in StepId=1.0.\n"
    assert why_run("FAILED", 1, {"batch.log": "", "node-1.log": oom}).failure_class == "host_oom"


def test_a_prolog_that_fails_is_why_slurm_requeued_the_job() -> None:
    text = (
        "slurmstepd-ra1: error: *** JOB 92 ON ra1 CANCELLED AT 2025-11-20T12:58:36 DUE TO JOB REQUEUE ***\n"
        "srun: error: Task launch for StepId=92.0 failed on node ra2: Job prolog failed\n"
    )
    found = why(text)
    assert (found.failure_class, found.cause, found.first_failure.node) == ("node_failure", "prolog_failed", "ra2")
    assert why(text.splitlines()[0]).cause == "requeued_by_scheduler"


def test_a_wrong_interface_of_gloo_is_named_as_such() -> None:
    found = why("RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: eth9\n")
    assert found.failure_class == "config_error"
    assert "GLOO_SOCKET_IFNAME" in found.advice
    assert "NCCL" not in found.advice


def test_a_missing_interpreter_names_the_node_for_this_run_only() -> None:
    text = "[hpc-launch] n2: /home/u/venv/bin/python3 is missing on this node\n"
    batch = "srun: error: n2: task 1: Exited with exit code 1\nsrun: error: n1: task 0: Terminated\n"
    found = why_run("FAILED", 1, {"batch.log": batch, "node-0.log": "", "node-1.log": text})
    assert (found.cause, found.default_verdict, found.bad_nodes) == ("interpreter_missing", "RETRY_ELSEWHERE", ("n2",))
    assert (found.first_failure.node, found.proven_nodes) == ("n2", ())


STAMP = 1763640000.0


def test_the_time_of_an_earlier_line_is_not_the_time_of_the_failure() -> None:
    text = "2025-11-20T12:00:00+00:00 step 1\nValueError: bad sample\n"
    assert why(text).first_failure.time is None
    assert why("2025-11-20T12:00:00+00:00 ValueError: bad sample\n").first_failure.time == STAMP


def test_the_watcher_knows_when_a_silent_rank_ended() -> None:
    batch = (
        "[hpc-launch 2025-11-20 12:00:00] job 16 on n[1-2]\n"
        "srun: error: n2: task 1: Exited with exit code 3\nsrun: Terminating StepId=16.0\n"
    )
    note = AgentNote("death", "agent/node-1.jsonl", "rank 1 ended with exit code 3", "n2", 1, STAMP + 9, code=3)
    found = why_run("FAILED", 3, {"batch.log": batch, **RANKS}, notes=(note,))
    assert (found.first_failure.rank, found.first_failure.time) == (1, STAMP + 9)


def test_a_rank_that_exits_without_a_message_is_no_crash() -> None:
    logs = {
        "batch.log": "srun: error: n2: task 1: Exited with exit code 3\nsrun: Terminating StepId=16.0\n",
        "node-0.rank-0.log": "ConnectionResetError: Connection closed by peer\n",
        "node-1.rank-1.log": "step 1\n",
    }
    notes = (
        AgentNote("spared", "agent/node-1.jsonl", "rank 1 ended", "n2", 1, STAMP + 9),
        AgentNote("death", "agent/node-0.jsonl", "rank 0 ended by signal 15", "n1", 0, STAMP + 10, signal=15),
    )
    found = why_run("FAILED", 3, logs, notes=notes)
    assert (found.failure_class, found.first_failure.rank) == ("user_code_error", 1)
    assert (found.first_failure.node, found.first_failure.time) == ("n2", STAMP + 9)


DOWN = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T08:14:10 DUE TO NODE FAILURE ***\n"


@pytest.mark.parametrize("nodes", [("n1",), ("n1", "n2")])
def test_a_training_that_prints_a_node_failure_blames_no_node(nodes: tuple[str, ...]) -> None:
    """Only Slurm's state and the batch log prove that a node failed; a single node is not at fault by itself."""
    log = {"batch.log": "", "node-0.rank-0.log": DOWN}
    down = DriverFacts(node_states=(("n1", "drained"),))
    evidence = Evidence(
        logs=tuple(scanned(text, name, source=number) for number, (name, text) in enumerate(log.items())),
        end=EndFacts(exit_code=7),
        nodes=nodes,
        of_a_run=True,
        driver=down,
    )
    found = diagnose(evidence, BOOK)
    assert (found.bad_nodes, found.proven_nodes) == ((), ())


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: *** JOB 16 ON n1 CANCELLED AT 2025-11-20T12:33:37 DUE TO TIME LIMIT ***",
        "slurmstepd: error: *** STEP 16.0 ON n1 CANCELLED AT 2025-11-20T12:33:37 DUE TO PREEMPTION ***",
        "Caught signal SIGUSR2 on n1: this job is preempted.",
    ],
)
def test_a_training_that_prints_an_end_which_never_counts_is_not_retried_for_ever(line: str) -> None:
    """With progress, preemption and time limits do not count towards `retry.max_attempts`."""
    found = why_run("FAILED", 1, {"batch.log": "", "node-0.log": f"step 1\n{line}\n"})
    assert found.failure_class not in ("time_limit", "preempted")
    worker = WorkerFailure("error.json", 0, rank=0, exit_code=1, message=line)
    evidence = Evidence(logs=(LogScan("error files", workers=(worker,)),), end=EndFacts(exit_code=1), of_a_run=True)
    assert diagnose(evidence, BOOK).failure_class not in ("time_limit", "preempted")


def test_a_process_that_a_good_run_survived_is_no_failure_of_it() -> None:
    note = AgentNote("death", "agent/node-1.jsonl", "rank 1 ended by signal 9", "n2", 1, STAMP, signal=9)
    found = why_run("COMPLETED", 0, {"batch.log": "", **RANKS}, notes=(note,))
    assert (found.failure_class, found.default_verdict) == ("success", "NONE")
