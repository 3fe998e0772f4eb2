"""`retry:` of a job file: what to retry automatically, how often, after which delay and with which changes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.job.type_hints import Duration, short_form

FAILURE_CLASSES = (
    "cuda_oom", "host_oom", "nccl_timeout", "nccl_system_error", "rendezvous_failure", "port_in_use", "gpu_hardware",
    "gpu_driver", "cuda_assert_or_illegal_access", "node_failure", "preempted", "time_limit", "cancelled_by_user",
    "disk_full_or_quota", "filesystem_error", "shm_exhausted", "module_not_found", "container_error", "import_error",
    "user_code_error", "config_error", "checkpoint_error", "data_error", "network_download_error", "permission_denied",
    "submit_rejected", "loss_nan", "segfault_or_abort", "hang_no_progress", "success", "unknown",
)  # fmt: skip
"""Names of the failure classes, shared with the diagnosis."""

FACTOR = r"^x[0-9]{1,3}(\.[0-9]{1,3})?$"
Factor = Annotated[str, Meta(pattern=FACTOR, examples=["x1.5"])]


class RetryStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change for the next attempt. All keys of a step change together."""

    change: Literal["half_batch"] | None = None
    """A predefined change. `half_batch` halves the micro batch and doubles the gradient accumulation, so that the
    global batch stays the same: `strategy.micro_batch`, `parallel.micro_batch`, or the arguments named by
    `retry.batch`."""
    memory: Factor | None = None
    """Factor for the memory per node, up to the node's memory."""
    time: Factor | None = None
    """Factor for the time limit, up to the queue's limit."""
    nodes: Annotated[Factor | None, Meta(examples=["x2"])] = None
    """Factor for the number of nodes, rounded down, at least one."""
    queue: str | None = None
    """Another queue of the site."""
    set: Annotated[dict[str, Any], Meta(examples=[{"strategy.fsdp.activation_checkpointing": True}])] = {}
    """Values to override, by dotted key, as in `--set`. Only these changes may alter the training itself."""
    times: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """How often to apply this change before moving on to the next step."""

    __short_forms__ = short_form("`half_batch`: a change by name.", {str: "change"})


class Reaction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Response to one class of failures."""

    verdict: Literal["RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED", "CONTINUE", "STOP"] | None = None
    """Verdict that replaces the class's default. With `steps`, it is RETRY_CHANGED."""
    steps: list[RetryStep] = []
    """Changes to apply one after another. After the last one, the run stops."""

    __short_forms__ = short_form(
        "A verdict such as `RETRY` or `STOP`, or a list of steps.", {list: "steps", str: "verdict"}
    )


class Backoff(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delay before an attempt without changes."""

    first: Duration = 30
    """First delay."""
    factor: Annotated[float, Meta(ge=1, le=1000)] = 2
    """Factor by which the delay grows while the run makes no progress."""
    most: Duration = 600
    """Maximum delay."""

    __short_forms__ = short_form("`backoff: 60s`: the first delay.", {str: "first", int: "first"})


class BatchKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments that hold the batch size, for `half_batch`."""

    micro: Annotated[str, Meta(examples=["args.batch-size"])]
    """Dotted key of the micro batch size."""
    accumulation: str | None = None
    """Dotted key of the gradient accumulation. Omit it if the training derives it."""


class Retry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to retry automatically, and how often ([recovery](how-to/recovery.md) lists the verdict for each class)."""

    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] = 20
    """Maximum number of attempts, including the first. Attempts that made progress and ended by the time limit or
    by preemption do not count. 1 disables retries."""
    no_progress: Annotated[int, Meta(ge=1, le=10_000)] = 2
    """Stop the run after this many consecutive attempts without progress and without changes."""
    budgets: Annotated[dict[str, Annotated[int, Meta(ge=0, le=10_000)]], Meta(examples=[{"nccl_timeout": 3}])] = {}
    """How often to retry a class of failures while the run makes no progress."""
    backoff: Backoff = Backoff()
    """Delay before retrying without changes."""
    in_allocation: Literal["auto", "off"] = "auto"
    """Where the next attempt runs. `auto`: in the same job where it fits and enough time is left, without waiting
    in the queue again. `off`: always in a new job."""
    successor: Literal["auto", "on", "off"] = "auto"
    """Whether the run's next job waits in the queue while the current one trains, and takes over if that one ends
    before the run does. `auto`: where the time limit is at least one hour and the site allows it."""
    on: Annotated[dict[str, Reaction], Meta(examples=[{"cuda_oom": ["half_batch"], "user_code_error": "RETRY"}])] = {}
    """Responses to classes of failures, replacing the defaults."""
    batch: BatchKeys | None = None
    """Arguments that hold the batch size."""
    lost_after: Duration = 900
    """If Slurm no longer knows the job and it left no end record, treat its node as failed after its logs have been
    silent for this long."""
    most_excluded: Annotated[int, Meta(ge=0, le=10_000)] = 8
    """Maximum number of nodes to exclude because they failed in this run."""
    stuck_after: Duration = 300
    """How long to keep a job in the queue that can never start, so that someone can fix the cause."""

    __short_forms__ = short_form(
        "`retry: 5`: the maximum number of attempts; `retry: 1` disables retries.", {int: "max_attempts"}
    )
