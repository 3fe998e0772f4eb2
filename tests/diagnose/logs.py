"""Logs and evidence for the tests of the diagnosis."""

from __future__ import annotations

from typing import Any

from hpc_launch.diagnose.diagnose import diagnose
from hpc_launch.diagnose.diagnosis import FAILURE_CLASSES, Action, Diagnosis
from hpc_launch.diagnose.evidence import EndFacts, Evidence, LogScan
from hpc_launch.diagnose.rulebook import shipped
from hpc_launch.diagnose.scan_log import scan
from hpc_launch.schedulers.scheduler import JobRecord

BOOK = shipped()

BY_CLASS: dict[str, Action] = {
    **dict.fromkeys(FAILURE_CLASSES, "STOP"),
    **dict.fromkeys(("cuda_oom", "host_oom", "shm_exhausted", "port_in_use"), "RETRY_CHANGED"),
    **dict.fromkeys(("gpu_hardware", "gpu_driver", "node_failure", "nccl_system_error"), "RETRY_ELSEWHERE"),
    **dict.fromkeys(("nccl_timeout", "rendezvous_failure", "filesystem_error", "hang_no_progress"), "RETRY"),
    **dict.fromkeys(("time_limit", "preempted"), "CONTINUE"),
    "success": "NONE",
}
"""What follows from a class unless the job file says otherwise."""


def scanned(text: str | bytes, name: str = "train.log", **more: Any) -> LogScan:
    """A log as the reader gives it, cut into small pieces so that each cut falls somewhere else."""
    data = text.encode() if isinstance(text, str) else text
    return scan(BOOK, name, [data[at : at + 97] for at in range(0, len(data), 97)], **more)


def why(*texts: str | bytes) -> Diagnosis:
    """What is said of log files alone."""
    logs = tuple(scanned(text, f"{number}.log", source=number) for number, text in enumerate(texts))
    return diagnose(Evidence(logs=logs), BOOK)


def why_run(state: str, code: int = 1, logs: dict[str, str] | None = None, **more: Any) -> Diagnosis:
    """What is said of a run's attempt whose scheduler says `state`."""
    nodes = more.pop("nodes", ("n1", "n2"))
    known = ("steps", "signal", "derived_exit_code", "reason", "ended", "lost_start")
    facts = {key: more.pop(key) for key in known if key in more}
    exit_code = more.pop("exit_code", code)
    scans = []
    for number, (name, text) in enumerate((logs or {}).items()):
        index = int(name.split("-")[1].split(".")[0]) if name.startswith("node-") else None
        rank = int(name.rsplit("-", 1)[1].split(".")[0]) if ".rank-" in name else None
        node = nodes[index] if index is not None else None
        scans.append(scanned(text, name, source=number, node=node, rank=rank))
    end = more.pop("end", EndFacts(exit_code=code))
    scheduler = JobRecord("1", state, "sacct", exit_code=exit_code, **facts)
    evidence = Evidence(logs=tuple(scans), scheduler=scheduler, end=end, nodes=nodes, of_a_run=True, **more)
    return diagnose(evidence, BOOK)
