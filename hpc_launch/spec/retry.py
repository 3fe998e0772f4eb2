"""`retry:` of a job file: what is tried again by itself, how often, after which pause, and with which changes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.spec.field_types import Duration

FACTOR = r"^x[0-9]{1,3}(\.[0-9]{1,3})?$"
Factor = Annotated[str, Meta(pattern=FACTOR, examples=["x1.5"])]


class RetryStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change for the next attempt. Several keys change together."""

    change: Annotated[
        Literal["half_batch"] | None,
        Meta(
            description="A change by its name. `half_batch` halves the micro batch and doubles the accumulation, so "
            "that the global batch stays: `strategy.micro_batch`, `parallel.micro_batch`, or the arguments named by "
            "`retry.batch`."
        ),
    ] = None
    memory: Annotated[Factor | None, Meta(description="The memory on each node, times this; a node's at most.")] = None
    time: Annotated[Factor | None, Meta(description="The time limit, times this; the queue's at most.")] = None
    nodes: Annotated[
        Factor | None, Meta(description="The number of nodes, times this, rounded down; one at least.", examples=["x2"])
    ] = None
    queue: Annotated[str | None, Meta(description="Another queue of the site.")] = None
    set: Annotated[
        dict[str, Any],
        Meta(
            description="Values of the job file by their dotted keys, as `--set` takes them. Only here can a change "
            "stand that changes the training.",
            examples=[{"strategy.fsdp.activation_checkpointing": True}],
        ),
    ] = {}
    times: Annotated[int, Meta(description="How often the change may be made before the next one's turn.", ge=1)] = 1

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`half_batch`: a change by its name."""
        return {"change": value} if isinstance(value, str) else None


class Reaction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done about one class of failures."""

    verdict: Annotated[
        Literal["RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED", "CONTINUE", "STOP"] | None,
        Meta(description="In place of the verdict by class; RETRY_CHANGED where `steps` stand."),
    ] = None
    steps: Annotated[
        list[RetryStep], Meta(description="Changes, one after another; after the last one the run stops.")
    ] = []

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """A verdict such as `RETRY` or `STOP`, or a list of steps."""
        if isinstance(value, str):
            return {"verdict": value}
        return {"steps": value} if isinstance(value, list) else None


class Backoff(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pause before an attempt that changes nothing."""

    first: Annotated[Duration, Meta(description="The first pause.")] = 30
    factor: Annotated[float, Meta(description="What each further pause is longer by, while nothing gets on.", ge=1)] = 2
    most: Annotated[Duration, Meta(description="The longest pause.")] = 600

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`backoff: 60s`: the first pause."""
        return {"first": value} if isinstance(value, str | int) and not isinstance(value, bool) else None


class BatchKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which arguments hold the batch, for `half_batch`."""

    micro: Annotated[str, Meta(description="The micro batch, by its dotted key.", examples=["args.batch-size"])]
    accumulation: Annotated[
        str | None, Meta(description="The gradient accumulation; left out where the training derives it.")
    ] = None


class Retry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is tried again by itself, and how often. The page [recovery](recovery.md) has the verdicts by class."""

    max_attempts: Annotated[
        int,
        Meta(
            description="Attempts of a run in all, the first one counted; those that end by the time limit or by "
            "preemption after getting further do not count. 1 tries nothing again.",
            ge=1,
        ),
    ] = 20
    no_progress: Annotated[
        int,
        Meta(description="So many attempts in a row without getting further, and nothing changed, end the run.", ge=1),
    ] = 2
    budgets: Annotated[
        dict[str, int],
        Meta(
            description="How often a class of failures is tried again while the run does not get further.",
            examples=[{"nccl_timeout": 3}],
        ),
    ] = {}
    backoff: Annotated[Backoff, Meta(description="The pause before the same is tried again.")] = Backoff()
    on: Annotated[
        dict[str, Reaction],
        Meta(
            description="What is done about a class of failures, in place of the default.",
            examples=[{"cuda_oom": ["half_batch"], "user_code_error": "RETRY"}],
        ),
    ] = {}
    batch: Annotated[BatchKeys | None, Meta(description="Which arguments hold the batch.")] = None
    lost_after: Annotated[
        Duration,
        Meta(
            description="How long the logs of a job have to be silent that Slurm has forgotten, and that left no word "
            "of its end, before its node counts as failed."
        ),
    ] = 900
    most_excluded: Annotated[
        int, Meta(description="How many nodes a run may be kept off because they failed in it.", ge=0)
    ] = 8
    stuck_after: Annotated[
        Duration,
        Meta(description="How long a job that can never start is left in the queue, for somebody to mend it."),
    ] = 300

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`retry: 5`: the attempts in all; `retry: 1` tries nothing again."""
        return {"max_attempts": value} if isinstance(value, int) and not isinstance(value, bool) else None
