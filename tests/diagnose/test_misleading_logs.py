"""Where the loudest line is not the cause: each of these was seen to mislead."""

from __future__ import annotations

from hpc_launch.diagnose.decide_verdict import default_action
from hpc_launch.diagnose.diagnose import diagnose
from hpc_launch.diagnose.evidence import AgentNote, DriverFacts, EndFacts, Evidence, NodeExit
from hpc_launch.schedulers.scheduler import JobRecord
from tests.diagnose.logs import BOOK, scanned, why, why_run

GLOO = (
    "RuntimeError: [/pytorch/third_party_note/gloo/gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [10.9.0.2]:52359. This is typically caused by a remote worker crashing."
)

WATCHDOG = (
    "[rank{0}]:[E1 ProcessGroupNCCL.cpp:6] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=4, NumelOut=4) ran for 600060 milliseconds before timing out.\n"
)

LIST = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2025-11-20_12:45:2{second}
  host      : {host}
  rank      : {rank} (local_rank: {local})
  exitcode  : {code} (pid: 283)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-11-20_12:45:22
  host      : {root_host}
  rank      : {root} (local_rank: 0)
  exitcode  : {root_code} (pid: 282)
  error_file: /x/error.json
  traceback : Traceback (most recent call last):
    File "/job/train.py", line 9, in inner
  {message}
============================================================
"""


def test_torchrun_calls_the_rank_it_killed_itself_the_root_cause() -> None:
    """Rank 3 ended with 17; rank 2, which torchrun then ended, had written its error a second before."""
    second = LIST.format(
        second=3,
        host="n2",
        rank=3,
        local=1,
        code="17",
        root_host="n2",
        root=2,
        root_code="-15  (SIGTERM)",
        message=GLOO,
    )
    first = LIST.format(
        second=3, host="n1", rank=1, local=1, code="-15  (SIGTERM)", root_host="n1", root=0, root_code="1", message=GLOO
    )
    found = why(f"[rank0]: {GLOO}\n[rank2]: {GLOO}\n{second}", first)
    assert (found.first_failure.rank, found.first_failure.node) == (3, "n2")
    assert (found.failure_class, found.cause) == ("user_code_error", "torchrun_worker_exit_code")
    assert "17" in found.advice


def test_the_exception_of_one_rank_counts_not_what_the_others_lost() -> None:
    text = f"[rank0]: {GLOO}\n[rank1]: {GLOO}\n[rank3]: ValueError: bad sample\n[rank2]: {GLOO}\n"
    found = why(text)
    assert (found.failure_class, found.first_failure.rank) == ("user_code_error", 3)
    assert any(text.startswith("nccl_system_error") for text in found.also)


def test_a_rank_killed_in_silence_is_known_by_its_launcher() -> None:
    killed = LIST.format(
        second=3, host="n2", rank=2, local=0, code="-15  (SIGTERM)", root_host="n2", root=3, root_code="-9",
        message="Signal 9 (SIGKILL) received by PID 283",
    )  # fmt: skip
    found = why(
        "E1120 12:43:59.6 203 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) "
        f"local_rank: 1 (pid: 207) of binary: python3\n{killed}[rank0]: {GLOO}\n"
    )
    assert (found.cause, found.first_failure.rank, found.first_failure.node) == ("torchrun_worker_signal", 3, "n2")


def test_a_kill_that_slurm_did_not_count_as_out_of_memory() -> None:
    line = "failed (exitcode: -9) local_rank: 1 (pid: 207) of binary: python3\n"
    steps = (("batch", "FAILED", "1:0"), ("0", "FAILED", "1:0"))
    found = why_run("FAILED", logs={"node-0.log": line}, steps=steps)
    assert (found.failure_class, default_action(found)) == ("segfault_or_abort", "RETRY")
    assert why(line).failure_class == "host_oom"


def test_srun_hands_on_the_code_of_a_bystander() -> None:
    """`--kill-on-bad-exit`: the step ends with 143, the culprit had 7."""
    text = (
        "srun: error: n2: task 1: Exited with exit code 7\nsrun: launch/slurm: _step_signal: Terminating StepId=16.0\n"
        "slurmstepd-n1: error: *** STEP 16.0 ON n1 CANCELLED AT 2025-11-20T12:27:26 ***\n"
        "srun: error: n1: task 0: Terminated\nsrun: Force Terminated StepId=16.0\n"
    )
    found = why_run("FAILED", 143, {"batch.log": text, "node-0.rank-0.log": "", "node-1.rank-1.log": ""}, signal=15)
    assert (found.failure_class, found.cause) == ("user_code_error", "task_exit_nonzero")
    assert (found.first_failure.node, found.first_failure.rank) == ("n2", 1)
    launchers = why_run("FAILED", 143, {"batch.log": text, "node-0.log": "", "node-1.log": ""}, signal=15)
    assert launchers.first_failure.rank is None, "with torchrun a task is a launcher, not a rank"


def test_the_killed_after_the_first_are_bystanders() -> None:
    text = (
        "AssertionError: Expected throughput\nsrun: error: h1: task 0: Exited with exit code 1\n"
        "srun: Terminating job step 3.0\nsrun: error: h1: tasks 2,6-7: Killed\n"
    )
    assert why(text).failure_class == "user_code_error"


def test_an_out_of_memory_step_in_a_completed_job() -> None:
    steps = (("batch", "COMPLETED", "0:0"), ("0", "OUT_OF_MEMORY", "0:125"))
    found = why_run("COMPLETED", 0, {"batch.log": "went on\n"}, steps=steps, derived_exit_code=0)
    assert (found.failure_class, default_action(found), found.confidence) == ("host_oom", "RETRY_CHANGED", "high")
    assert found.evidence[0].text == "step 0: OUT_OF_MEMORY 0:125"
    assert why_run("FAILED", 1, {}, steps=(("0", "FAILED", "0:125"),)).failure_class == "host_oom"


def test_a_step_that_failed_in_a_completed_job() -> None:
    found = why_run("COMPLETED", 0, {"batch.log": "rc=7\n"}, derived_exit_code=7)
    assert (found.failure_class, found.cause) == ("unknown", "completed_but_step_failed")
    text = "srun: error: n2: task 1: Exited with exit code 7\nrc=7\n"
    assert why_run("COMPLETED", 0, {"batch.log": text}, derived_exit_code=7).cause == "task_exit_nonzero"


def test_an_exit_code_that_accounting_shows_as_zero() -> None:
    """Slurm before 25.11 takes 128 off: exit 128 becomes FAILED 0:0."""
    assert why_run("FAILED", 128, {"batch.log": ""}, exit_code=0).failure_class == "unknown"
    assert why_run("FAILED", 128, {"node-0.log": "ValueError: x\n"}, exit_code=0).failure_class == "user_code_error"


def test_the_log_of_a_dead_batch_host_just_stops() -> None:
    log = "step 1 loss 2.0\nstep 2 loss 1.9\n"
    found = why_run("NODE_FAIL", 0, {"node-0.log": log}, end=None)
    assert (found.failure_class, default_action(found), found.bad_nodes) == ("node_failure", "RETRY", ())
    named = diagnose(
        Evidence(
            logs=(scanned(log),),
            scheduler=JobRecord("1", "NODE_FAIL", "sacct"),
            nodes=("n1", "n2"),
            driver=DriverFacts(node_states=(("n2", "down*"),)),
            of_a_run=True,
        ),
        BOOK,
    )
    assert (default_action(named), named.bad_nodes) == ("RETRY_ELSEWHERE", ("n2",))
    assert why(log).failure_class != "success" or why(log).confidence == "low"


def test_a_working_folder_that_is_not_there() -> None:
    text = "slurmstepd-n3: error: couldn't chdir to `/no/dir': No such file or directory: going to /tmp instead\n/tmp\n"
    found = why_run("COMPLETED", 0, {"batch.log": text}, derived_exit_code=0)
    assert (found.failure_class, found.cause) == ("config_error", "workdir_missing")


def test_a_node_by_another_form_of_its_name_and_one_of_another_job() -> None:
    xid = "Feb  3 11:02:01 n2.cluster kernel: [8.1] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\n"
    assert why_run("FAILED", 1, {"batch.log": xid}).bad_nodes == ("n2",)
    stranger = why_run("FAILED", 1, {"batch.log": xid.replace("n2.", "x9.")})
    assert (stranger.failure_class, stranger.bad_nodes) == ("gpu_hardware", ())


def test_preemption_with_grace_says_cancelled_first() -> None:
    text = (
        "slurmstepd-n1: error: *** STEP 95.0 ON n1 CANCELLED AT 2025-11-20T12:59:31 ***\n"
        "slurmstepd-n1: error: *** JOB 95 ON n1 CANCELLED AT 2025-11-20T12:59:47 DUE TO PREEMPTION ***\n"
        "srun: error: n2: task 1: Killed\n"
    )
    assert why(text).failure_class == "preempted"
    assert default_action(why_run("PREEMPTED", 143, {"batch.log": text[:80]})) == "CONTINUE"


def test_what_the_programs_say_after_the_time_limit() -> None:
    after = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nRuntimeError: interrupted\n'
    found = why_run("TIMEOUT", 143, {"node-0.log": "step 5 loss 1\n" + after})
    assert (found.failure_class, default_action(found)) == ("time_limit", "CONTINUE")


def test_a_person_cancelled() -> None:
    found = why_run("CANCELLED", 143, {"node-0.log": "KeyboardInterrupt\n"}, cancelled_by="alice")
    assert (found.failure_class, default_action(found), found.confidence) == ("cancelled_by_user", "STOP", "high")
    assert "alice" in found.evidence[0].text


def test_ranks_out_of_step_are_no_network_fault() -> None:
    line = WATCHDOG.replace("ALLREDUCE", "{1}").replace("NumelIn=4", "NumelIn={2}")
    same = "".join(line.format(rank, "ALLREDUCE", 4) for rank in range(4))
    other = same + line.format(4, "ALLREDUCE", 9000)
    assert (why(same).failure_class, default_action(why(same))) == ("nccl_timeout", "RETRY")
    assert (why(other).failure_class, default_action(why(other))) == ("nccl_timeout", "STOP")


def test_the_rank_that_did_not_come() -> None:
    line = WATCHDOG
    assert why("".join(line.format(rank) for rank in (0, 1, 2, 4, 5))).first_failure.rank == 3


def test_the_peer_is_broken_and_the_reporter_is_well() -> None:
    text = "n7:48:65 [1] include/socket.h:403 NCCL WARN Connect to 10.0.0.1<56821> failed : Connection refused\n"
    found = why_run("FAILED", 1, {"node-0.log": text})
    assert (found.failure_class, default_action(found)) == ("nccl_system_error", "RETRY_ELSEWHERE")
    assert found.bad_nodes == ()


def test_a_wrong_interface_and_a_node_that_went_away() -> None:
    text = "n7:48:65 [1] socket.h:415 NCCL WARN Net : Connect to 10.0.0.1<5> failed : No route to host\n"
    assert default_action(why(text)) == "RETRY_CHANGED"
    steps = "".join(f"step {step} loss 1.{step}\n" for step in range(9))
    assert default_action(why(steps + text)) == "RETRY_ELSEWHERE"


def test_an_error_that_the_training_survived() -> None:
    steps = "".join(f"step {step}/9 loss 1.{step}\n" for step in range(5, 10))
    found = why("OSError: [Errno 5] Input/output error\n" + steps + "Training completed.\n")
    assert found.failure_class == "success"
    assert any("survived" in text for text in found.also)
    assert why("OSError: [Errno 5] Input/output error\nstep 5/9 loss 1.5\n").failure_class == "filesystem_error"


def test_a_tracker_that_syncs_at_the_end_is_no_success() -> None:
    assert (
        why("OSError: [Errno 122] Disk quota exceeded\nwandb: Synced 5 W&B file(s)\n").failure_class
        == "disk_full_or_quota"
    )


def test_a_launcher_that_failed_after_the_last_word_of_success() -> None:
    text = "epoch 3 loss 0.1\nTraining finished.\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    assert why(text).failure_class != "success"


def test_what_the_watcher_in_the_job_saw() -> None:
    died = AgentNote("death", "agent/node-1.jsonl", "rank 5 ended by signal 11", "n2", 5, 100.0, 11)
    found = why_run("FAILED", 1, {"node-0.log": f"[rank0]: {GLOO}\n"}, notes=(died,))
    assert (found.failure_class, found.first_failure.rank, found.first_failure.node) == ("segfault_or_abort", 5, "n2")
    oom = AgentNote("oom_kill", "agent/node-1.jsonl", "rank 5 was killed for its memory", "n2", 5, 100.0, 9)
    assert why_run("FAILED", 1, {"node-0.log": f"[rank0]: {GLOO}\n"}, notes=(oom,)).failure_class == "host_oom"
    hang = AgentNote("hang", "agent/hang.json", "no output and no work for 600 s", "n1", None, 50.0)
    abort = "Fatal Python error: Aborted\n"
    assert why_run("FAILED", 1, {"node-0.log": abort}, notes=(hang, died)).failure_class == "hang_no_progress"


def test_a_training_that_ended_too_early() -> None:
    words = "the training ended with exit code 0 at step 5 of 10: it is not finished"
    found = why_run("COMPLETED", 0, {"node-0.log": "step 5/10 loss 1\n"}, derived_exit_code=0, unfinished=words)
    assert (found.failure_class, default_action(found)) == ("unknown", "STOP")
    assert "HPC_LAUNCH_DONE_FILE" in found.advice
    warned = why_run("COMPLETED", 0, {}, derived_exit_code=0, unfinished=words, end=EndFacts(exit_code=0, warned=True))
    assert (warned.failure_class, default_action(warned)) == ("time_limit", "CONTINUE")


def test_a_refused_submission() -> None:
    found = diagnose(
        Evidence(void="sbatch: error: QOSMaxNodePerJobLimit\nsbatch: error: Batch job submission failed"), BOOK
    )
    assert (found.failure_class, found.cause, default_action(found)) == ("submit_rejected", "submit_over_limit", "STOP")


def test_only_a_launcher_s_exit_code() -> None:
    found = why_run(
        "FAILED", 1, {"node-0.log": "", "node-1.log": ""}, node_exits=(NodeExit("n1", 0), NodeExit("n2", 3))
    )
    assert (found.cause, found.first_failure.node) == ("task_exit_nonzero", "n2")


def test_success_needs_both_witnesses() -> None:
    log = {"node-0.log": "WARNING: x\nstep 10/10 loss 1\n"}
    assert why_run("COMPLETED", 0, log, derived_exit_code=0).failure_class == "success"
    assert why_run("COMPLETED", 1, log, derived_exit_code=0).failure_class != "success"
    assert why_run("FAILED", 0, log).failure_class != "success"


def test_nothing_at_all() -> None:
    assert why("").failure_class == "unknown"
    assert diagnose(Evidence(), BOOK).failure_class == "unknown"


def test_no_line_is_listed_twice() -> None:
    text = "OSError: [Errno 28] No space left on device\nRuntimeError: CUDA error: no kernel image, [Errno 13] x\n"
    also = why(text).also
    places = [entry.split(": ")[-3:] for entry in also]
    assert len(places) == len({tuple(place) for place in places})


def test_a_contested_cause_is_not_certain() -> None:
    full = "OSError: [Errno 28] No space left on device\n"
    assert why(full).confidence == "high"
    assert why(full + "RuntimeError: CUDA error: device-side assert triggered\n").confidence == "medium"
