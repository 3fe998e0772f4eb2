"""A log may hold several jobs, restarts, and errors that the job survived: only what ended the last episode counts."""

from __future__ import annotations

import pytest

from hpc_launch.diagnose.decide_verdict import default_action
from tests.diagnose.logs import why

KEY_ERROR = (
    'Traceback (most recent call last):\n  File "/home/u/fit.py", line 3, in <module>\n    fit(a)\nNameError: a\n'
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
LIMIT = "slurmstepd: error: *** JOB 812 ON n2 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***\n"
CANCELLED = "slurmstepd: error: *** JOB 811 ON n7 CANCELLED AT 2026-01-01T03:04:05 ***\n"
RESTART = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"

HEADS = (
    "CondaError: Run 'conda init' before 'conda deactivate'\n",
    "Lmod Warning: x, continuing\nERROR: Unable to locate a modulefile for 'old'\nLoading requirement: gcc/12.3\n",
    "ERROR: pip's dependency resolver does not take all packages into account.\nSuccessfully installed bar-2\n",
    "WARNING: Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError'\nDownloading: 100%\n",
    "slurm_script: line 4: nvidia-smi-top: command not found\n",
    "curl: (6) Could not resolve host: metadata.example\nusing the cached copy\n",
    "chmod: changing permissions of '/scratch/x': Operation not permitted\n",
    "/var/spool/slurmd/job00012/slurm_script: line 5: /home/u/.extra: No such file or directory\n",
    "wandb: Network error (ConnectTimeout), entering retry loop.\n",
)


def steps(first: int, last: int, total: int = 100) -> str:
    return "".join(f"step {step}/{total} loss {3 - step / total:.2f}\n" for step in range(first, last + 1))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (KEY_ERROR, "user_code_error"),
        (OOM, "cuda_oom"),
        (LIMIT, "time_limit"),
        ("FATAL:   could not open image /p/x.sif: lstat /p/x.sif: no such file or directory\n", "container_error"),
        ("sbatch: error: Batch job submission failed: Invalid qos specification\n", "submit_rejected"),
        (steps(1, 9) + "srun: error: n1: task 3: Segmentation fault (core dumped)\n", "segfault_or_abort"),
    ],
)
def test_a_command_that_failed_before_the_program_is_not_the_cause(head: str, log: str, expected: str) -> None:
    assert why(head + log).failure_class == expected


def test_of_several_failed_commands_the_last_counts() -> None:
    assert why(HEADS[5] + "touch: cannot touch 'y': Disk quota exceeded\n").failure_class == "disk_full_or_quota"


def test_a_failed_command_is_the_cause_where_the_program_misses_its_file() -> None:
    missing = KEY_ERROR.replace("NameError: a", "FileNotFoundError: [Errno 2] No such file: '/tmp/u/corpus.bin'")
    copy = "cp: error writing '/tmp/u/corpus.bin': No space left on device\n"
    assert why(copy + missing).failure_class == "disk_full_or_quota"
    assert why(copy.replace("corpus", "others") + missing).failure_class == "data_error"


def test_a_failed_command_is_the_cause_of_what_follows_from_it() -> None:
    missing = KEY_ERROR.replace("NameError: a", "ModuleNotFoundError: No module named 'torch'")
    assert why("bash: module: command not found\n" + missing).failure_class == "module_not_found"
    assert why('The following module(s) are unknown: "python/3.99"\n' + missing).failure_class == "module_not_found"
    assert why("ERROR: Unable to locate a modulefile for 'python/3.99'\n").failure_class == "module_not_found"


@pytest.mark.parametrize(
    "begins",
    [
        "=== job 812 starts on n1,n2 ===\n",
        "Starting job 812 on n2\n",
        "SLURM_JOB_ID: 812\n",
        "Job started at Mon Jan  5 10:00:00 2026\n",
    ],
)
def test_an_earlier_job_in_the_same_log_is_not_the_cause(begins: str) -> None:
    for earlier in (CANCELLED, OOM + "srun: error: n7: task 0: Exited with exit code 1\n"):
        found = why("step 10/100 loss 2.1\n" + earlier + begins + KEY_ERROR)
        assert (found.failure_class, found.first_failure.node) == ("user_code_error", None)
        done = why(earlier + begins + steps(1, 100) + "Training completed.\n")
        assert done.failure_class == "success"
        running = why(earlier + begins + steps(1, 40))
        assert (running.failure_class, default_action(running)) == ("unknown", "NONE")


def test_another_job_is_known_by_the_id_that_slurm_prints() -> None:
    found = why(
        CANCELLED + "reading the data\nsrun: error: StepId=812.0 aborted before step completely launched.\n" + OOM
    )
    assert found.failure_class == "cuda_oom"


def test_errors_of_the_end_of_a_job_are_not_another_job() -> None:
    found = why(CANCELLED + KEY_ERROR + "srun: error: n7: task 0: Terminated\n")
    assert found.failure_class == "cancelled_by_user"


def test_a_failure_before_a_restart_is_not_the_cause_of_a_later_one() -> None:
    lost = "[rank3]: ConnectionResetError: [Errno 104] Connection reset by peer\n"
    assert why(steps(1, 9) + KEY_ERROR + RESTART + steps(5, 20) + OOM).failure_class == "cuda_oom"
    assert why(steps(1, 9) + KEY_ERROR + RESTART + steps(5, 100) + "Training completed.\n").failure_class == "success"
    assert why(steps(1, 9) + KEY_ERROR + RESTART + lost).failure_class == "user_code_error"


@pytest.mark.parametrize("prefix", ["3: ", "[rank3]: ", "gpu017: ", "2026-01-02 03:04:05,678 ", "[1,3]<stderr>:"])
def test_a_label_before_each_line_changes_nothing(prefix: str) -> None:
    owned = KEY_ERROR.replace("fit.py", "my_dataset.py").replace("NameError: a", "KeyError: 'caption'")
    for log in (KEY_ERROR, owned, OOM, LIMIT, "FATAL:   could not open image /p/x.sif: no such file or directory\n"):
        found = why("".join(f"{prefix}{line}\n" for line in log.splitlines()))
        assert found.failure_class == why(log).failure_class


@pytest.mark.parametrize("total", [100, 5000])
def test_a_log_that_breaks_off_is_not_a_success(total: int) -> None:
    found = why(steps(1, 55, total))
    assert (found.failure_class, found.cause, default_action(found)) == ("unknown", "breaks_off", "NONE")
    assert f"step 55 of {total}" in found.advice
    assert why("reading the data\nworld size 4\nmodel has 3 M parameters\nwarming up\n").failure_class == "unknown"


def test_the_last_step_of_all_is_a_success() -> None:
    assert why(steps(1, 100)).failure_class == "success"
    epochs = "".join(f"Epoch {epoch}/3: 100%|###| 50/50 [00:10<00:00, 4.9it/s, loss=0.3]\n" for epoch in (1, 2, 3))
    assert why(epochs).failure_class == "success"
    assert why(epochs[: epochs.index("Epoch 3")]).failure_class == "unknown"


def test_random_bytes_are_unknown() -> None:
    import random

    assert why(random.Random(1).randbytes(300_000)).failure_class == "unknown"


def test_the_rank_that_a_message_is_about() -> None:
    watchdog = (
        "[rank0]:[E1 ProcessGroupNCCL.cpp:6] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=4, NumelOut=4) ran for 600060 milliseconds before timing out.\n"
    )
    for message in ("rank 7 timed out in allreduce", "no heartbeat from rank 7 for 600 s", "rank 7 did not respond"):
        for log in (f"[rank0]: RuntimeError: {message}\n", watchdog + f"[rank0]: RuntimeError: {message}\n"):
            assert (why(log).failure_class, why(log).first_failure.rank) == ("nccl_timeout", 7), log


def test_the_clock_comes_before_the_order_of_lines() -> None:
    """Programs buffer what they print."""
    late = "2026-01-02 03:04:09,100 [rank1]: ValueError: second\n"
    early = "2026-01-02 03:04:05,100 [rank6]: ValueError: first\n"
    assert why(late + early).first_failure.rank == 6
    assert why(late, early).first_failure.rank == why(early, late).first_failure.rank == 6
