"""The watcher on each node, and the variables that make a dying or hanging process report where it was."""

from __future__ import annotations

from hpc_launch.job.job import JobSpec
from hpc_launch.job.origin import rule
from hpc_launch.job.shell_text import RUNTIME
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.plan.plan_parts import Variable, WatchPlan

_ATTEMPT = RUNTIME["attempt.dir"]


def watch(job: JobSpec) -> WatchPlan | None:
    """The watcher's settings; None if the job turns it off, or if the launcher's processes cannot be watched."""
    if not job.hang.watch or not descriptor(job.launcher.name).watched:
        return None
    hang = job.hang
    return WatchPlan(hang.after or 0, hang.busy_after or 0, hang.sample_every, hang.phases)


def debug_variables(gpus: bool) -> list[Variable]:
    """Variables that have no cost until something goes wrong.

    Python prints the stacks of all threads at a fatal signal (faulthandler); PyTorch keeps the last collectives of NCCL
    and writes them at a timeout or when the watcher asks (torch/csrc/distributed/c10d/FlightRecorder.hpp; the buffer's
    name changed in 2.5, and older releases ignore the newer one).
    """
    result = [Variable("PYTHONFAULTHANDLER", ("1",), rule("stacks of all threads at a fatal signal"))]
    if gpus:
        kept = rule("NCCL's last collectives, at a timeout")
        result += [
            Variable("TORCH_NCCL_TRACE_BUFFER_SIZE", ("2000",), kept),
            Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", ("1",), kept),
            Variable("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", (_ATTEMPT, "/agent/nccl-rank-"), kept),
            Variable("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", (_ATTEMPT, "/agent/nccl-ask-"), kept),
        ]
    return result
