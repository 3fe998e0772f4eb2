"""What the stages of recovery hand on: evidence → Diagnosis → Verdict, each frozen."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FAILURE_CLASSES = (
    "cuda_oom", "host_oom", "nccl_timeout", "nccl_system_error", "rendezvous_failure", "port_in_use", "gpu_hardware",
    "gpu_driver", "cuda_assert_or_illegal_access", "node_failure", "preempted", "time_limit", "cancelled_by_user",
    "disk_full_or_quota", "filesystem_error", "shm_exhausted", "module_not_found", "container_error", "import_error",
    "user_code_error", "config_error", "checkpoint_error", "data_error", "network_download_error", "permission_denied",
    "submit_rejected", "loss_nan", "segfault_or_abort", "hang_no_progress", "success", "unknown",
)  # fmt: skip

Action = Literal["RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED", "CONTINUE", "STOP", "NONE"]
Confidence = Literal["high", "medium", "low"]


class Quote(Struct, frozen=True):
    """One line of evidence. `line` counts from 1; 0 where the source has no lines, such as a row of `sacct`."""

    file: str
    line: int
    text: str


class FirstFailure(Struct, frozen=True):
    """Who failed first. `time` is seconds since the epoch; each is None where no evidence names it."""

    node: str | None = None
    rank: int | None = None
    time: float | None = None


class Diagnosis(Struct, frozen=True):
    """What ended an attempt: the class of the root cause, never of what followed from it."""

    failure_class: str
    """One of FAILURE_CLASSES."""
    cause: str | None = None
    """The finer name: an id of the rules."""
    confidence: Confidence = "low"
    first_failure: FirstFailure = FirstFailure()
    evidence: tuple[Quote, ...] = ()
    also: tuple[str, ...] = ()
    """What else was seen, in words."""
    default_verdict: Action = "STOP"
    """By class and cause, before history and policy change it."""
    bad_nodes: tuple[str, ...] = ()
    """Nodes that the evidence blames, by the names Slurm has for them; never a bystander."""
    advice: str = ""
    """The next step, in one sentence."""


class Verdict(Struct, frozen=True):
    """What happens next, and why."""

    action: Action
    reason: str
    exclude: tuple[str, ...] = ()
    """Nodes that the next attempt keeps off."""
    sets: tuple[str, ...] = ()
    """What the next attempt changes, as `--set` spells it."""
    delay_s: float = 0.0
