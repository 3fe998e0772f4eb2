"""The verdict: a table of what a person would expect, and what must hold whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpc_launch.diagnose.decide_verdict import AttemptProgress, ChangeFacts, PastAttempt, Policy, decide
from hpc_launch.diagnose.diagnosis import FAILURE_CLASSES, Diagnosis, Verdict
from hpc_launch.job.retry import Backoff, Reaction, Retry, RetryStep
from hpc_launch.plan.recorded_parts import BatchPlan
from tests.diagnose.logs import BY_CLASS

STILL = AttemptProgress(False)
FACTS = ChangeFacts(
    batch=BatchPlan("args.micro", 8, "args.accumulation", 2),
    memory=1000, node_memory=2000, time_s=3600, most_time_s=7200, nodes=2, max_nodes=4, spare_nodes=3, queue="gpu",
)  # fmt: skip


def diagnosis(kind: str, **more: Any) -> Diagnosis:
    return Diagnosis(kind, **{"default_verdict": BY_CLASS[kind], **more})


def run_of(kind: str, progress: list[bool], policy: Policy | None = None, **more: Any) -> list[Verdict]:
    """The verdicts on attempts that all end in the same way, up to the one that stops."""
    rules = policy or Policy(facts=FACTS)
    history: list[PastAttempt] = []
    verdicts = []
    for further in progress:
        verdict = decide(diagnosis(kind, **more), history, AttemptProgress(further), rules)
        verdicts.append(verdict)
        if verdict.action in ("STOP", "NONE"):
            break
        history.append(PastAttempt(kind, verdict.action, further, verdict.steps_used))
    return verdicts


STUBBORN = Retry(on={"user_code_error": Reaction(verdict="RETRY"), "node_failure": Reaction(verdict="STOP"),
                     "cancelled_by_user": Reaction(verdict="RETRY"),
                     "time_limit": Reaction(verdict="CONTINUE")})  # fmt: skip
BUDGETS = Retry(budgets={"nccl_timeout": 4, "cuda_oom": 1, "time_limit": 0})


@pytest.mark.parametrize(
    ("kind", "progress", "retry", "expected"),
    [
        *((kind, [False], Retry(), ["STOP"]) for kind, action in BY_CLASS.items() if action == "STOP"),
        # Two attempts without progress are enough; with it a run goes on up to its attempts.
        *((kind, [False] * 5, Retry(), ["RETRY", "STOP"]) for kind, action in BY_CLASS.items() if action == "RETRY"),
        ("nccl_timeout", [False, True, False, False], Retry(), ["RETRY", "RETRY", "RETRY", "STOP"]),
        ("nccl_timeout", [True] * 99, Retry(), ["RETRY"] * 19 + ["STOP"]),
        # A chain goes on as long as it gets further; preemption before the first checkpoint is no fault of the job.
        ("time_limit", [True] * 200, Retry(), ["CONTINUE"] * 200),
        ("preempted", [True] * 200, Retry(), ["CONTINUE"] * 200),
        # Without a new checkpoint another attempt would begin where this one did.
        ("time_limit", [False], Retry(), ["STOP"]),
        ("time_limit", [True, False], Retry(), ["CONTINUE", "STOP"]),
        ("time_limit", [False] * 3, STUBBORN, ["CONTINUE", "STOP"]),
        ("preempted", [False] * 99, Retry(), ["CONTINUE"] * 10 + ["STOP"]),
        ("port_in_use", [False] * 9, Retry(), ["RETRY_CHANGED"] * 3 + ["STOP"]),
        # A crash after progress is tried once more.
        ("segfault_or_abort", [True, False], Retry(), ["RETRY", "STOP"]),
        ("user_code_error", [True], Retry(), ["STOP"]),
        # The job file has the last word on a class, and a budget of it goes before the general rule.
        ("user_code_error", [False] * 3, STUBBORN, ["RETRY", "STOP"]),
        ("node_failure", [True], STUBBORN, ["STOP"]),
        ("cancelled_by_user", [True], STUBBORN, ["STOP"]),
        ("nccl_timeout", [False] * 9, BUDGETS, ["RETRY"] * 4 + ["STOP"]),
        ("cuda_oom", [False] * 9, BUDGETS, ["RETRY_CHANGED", "STOP"]),
        ("time_limit", [True], BUDGETS, ["STOP"]),
    ],
)
def test_what_a_person_would_expect(kind: str, progress: list[bool], retry: Retry, expected: list[str]) -> None:
    assert [verdict.action for verdict in run_of(kind, progress, Policy(retry, FACTS))] == expected


def test_a_device_assertion_is_not_tried_again() -> None:
    (verdict,) = run_of("cuda_assert_or_illegal_access", [True], cause="cuda_device_assert")
    assert verdict.action == "STOP"


def test_a_named_node_is_kept_off() -> None:
    (verdict,) = run_of("node_failure", [True], bad_nodes=("n3",))
    assert (verdict.action, verdict.exclude, verdict.delay_s) == ("RETRY_ELSEWHERE", ("n3",), 0)


def test_without_a_name_it_is_a_plain_retry() -> None:
    (verdict,) = run_of("node_failure", [True])
    assert (verdict.action, verdict.exclude) == ("RETRY", ())


def test_a_node_that_is_blamed_twice_is_kept_off_whatever_the_class() -> None:
    named = diagnosis("nccl_timeout", bad_nodes=("n2",))
    assert decide(named, [], STILL, Policy(facts=FACTS)).action == "RETRY"
    history = [PastAttempt("hang_no_progress", "RETRY", False, blamed=("n2",))]
    verdict = decide(named, history, STILL, Policy(facts=FACTS))
    assert (verdict.action, verdict.exclude) == ("RETRY_ELSEWHERE", ("n2",))


@pytest.mark.parametrize("facts", [replace(FACTS, spare_nodes=0), replace(FACTS, excluded=("a", "b", "c"))])
def test_a_queue_is_never_emptied(facts: ChangeFacts) -> None:
    (verdict,) = run_of("gpu_hardware", [True], Policy(facts=facts), bad_nodes=("n3",))
    assert (verdict.action, verdict.exclude) == ("RETRY", ())


def test_different_bad_nodes_have_a_budget_of_their_own() -> None:
    history = [PastAttempt("node_failure", "RETRY_ELSEWHERE", False)] * 3
    named = diagnosis("node_failure", bad_nodes=("n4",))
    assert decide(named, history, STILL, Policy()).action == "RETRY_ELSEWHERE"
    assert decide(named, [*history, history[0]], STILL, Policy()).action == "STOP"


def test_out_of_memory_halves_the_micro_batch_until_it_is_one() -> None:
    facts, seen = FACTS, []
    history: list[PastAttempt] = []
    while (verdict := decide(diagnosis("cuda_oom"), history, STILL, Policy(facts=facts))).action == "RETRY_CHANGED":
        values = dict(text.split("=") for text in verdict.sets)
        batch = BatchPlan(
            "args.micro", int(values["args.micro"]), "args.accumulation", int(values["args.accumulation"])
        )
        seen.append((batch.micro, batch.accumulation))
        facts = replace(facts, batch=batch)
        history.append(PastAttempt("cuda_oom", verdict.action, False, verdict.steps_used))
    assert seen == [(4, 4), (2, 8), (1, 16)]
    assert "no change is left" in verdict.reason


def test_where_the_accumulation_is_derived_the_micro_batch_alone_is_set() -> None:
    facts = replace(FACTS, batch=BatchPlan("strategy.micro_batch", 9))
    (verdict,) = run_of("cuda_oom", [False], Policy(facts=facts))
    assert verdict.sets == ("strategy.micro_batch=3",)


def test_memory_grows_to_what_a_node_has() -> None:
    first = decide(diagnosis("host_oom"), [], STILL, Policy(facts=FACTS))
    assert first.sets == ("memory=1500M",)
    history = [PastAttempt("host_oom", "RETRY_CHANGED", False, first.steps_used)]
    second = decide(diagnosis("host_oom"), history, STILL, Policy(facts=replace(FACTS, memory=1500)))
    assert second.sets == ("memory=2000M",)
    history.append(PastAttempt("host_oom", "RETRY_CHANGED", False, second.steps_used))
    assert decide(diagnosis("host_oom"), history, STILL, Policy(facts=replace(FACTS, memory=2000))).action == "STOP"


def test_the_steps_of_the_job_file_go_one_after_another() -> None:
    steps = [
        RetryStep(change="half_batch"),
        RetryStep(set={"precision": "bf16", "args.ckpt": True}),
        RetryStep(time="x1.5", queue="big"),
    ]
    policy = Policy(Retry(on={"cuda_oom": Reaction(steps=steps)}), FACTS)
    sets = [verdict.sets for verdict in run_of("cuda_oom", [False] * 9, policy)]
    assert sets == [
        ("args.micro=4", "args.accumulation=4"),
        ('precision="bf16"', "args.ckpt=true"),
        ("time=01:30:00", 'queue="big"'),
        (),
    ]


def test_a_step_that_changes_nothing_is_passed_over() -> None:
    steps = [RetryStep(change="half_batch"), RetryStep(nodes="x2")]
    policy = Policy(Retry(on={"cuda_oom": Reaction(steps=steps)}), replace(FACTS, batch=None))
    assert [verdict.sets for verdict in run_of("cuda_oom", [False] * 9, policy)] == [("nodes=4",), ()]


def test_pauses_grow_and_start_anew_after_progress() -> None:
    policy = Policy(Retry(budgets={"nccl_timeout": 9}, backoff=Backoff(first=10, factor=3, most=100)))
    pauses = [verdict.delay_s for verdict in run_of("nccl_timeout", [False, False, False, False, True, False], policy)]
    assert pauses == [10, 30, 90, 100, 10, 10]


kinds = st.sampled_from(FAILURE_CLASSES)
stories = st.lists(
    st.tuples(kinds, st.booleans(), st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=2)), min_size=1, max_size=60
)
retries = st.builds(
    Retry,
    max_attempts=st.integers(1, 30),
    no_progress=st.integers(1, 5),
    budgets=st.dictionaries(kinds, st.integers(0, 5), max_size=3),
    backoff=st.builds(Backoff, first=st.integers(0, 100), factor=st.floats(1, 1e6), most=st.integers(0, 1000)),
    on=st.dictionaries(
        kinds,
        st.builds(
            Reaction,
            verdict=st.sampled_from([None, "RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED", "CONTINUE", "STOP"]),
            steps=st.lists(
                st.builds(RetryStep, change=st.sampled_from([None, "half_batch"]), times=st.integers(1, 3)), max_size=2
            ),
        ),
        max_size=3,
    ),
    most_excluded=st.integers(0, 4),
)


@given(stories, retries)
def test_whatever_happens(story: list[tuple[str, bool, list[str]]], retry: Retry) -> None:
    history: list[PastAttempt] = []
    facts = replace(FACTS, excluded=())
    failures = 0
    batch = FACTS.batch
    assert batch is not None
    for kind, further, nodes in story:
        told = diagnosis(kind, bad_nodes=tuple(nodes))
        verdict = decide(told, history, AttemptProgress(further), Policy(retry, facts))
        assert verdict == decide(told, history, AttemptProgress(further), Policy(retry, facts)), "it is a function"
        assert verdict.reason
        assert 0 <= verdict.delay_s <= retry.backoff.most
        assert set(verdict.exclude) <= set(nodes), "only what the evidence names is kept off"
        assert (verdict.action == "NONE") == (kind == "success")
        if kind == "cancelled_by_user":
            assert verdict.action == "STOP"
        failures += not (further and kind in ("time_limit", "preempted"))
        if verdict.action in ("STOP", "NONE"):
            return
        assert failures < retry.max_attempts, "the attempts in all are kept to"
        if verdict.action == "RETRY_ELSEWHERE":
            assert verdict.exclude
            facts = replace(facts, excluded=(*facts.excluded, *verdict.exclude))
            assert len(facts.excluded) <= min(retry.most_excluded, 3), "the queue is not emptied"
        if verdict.action == "RETRY_CHANGED" and verdict.sets:
            values = dict(text.split("=") for text in verdict.sets)
            changed = batch
            if "args.micro" in values:
                numbers = int(values["args.micro"]), int(values["args.accumulation"])
                changed = BatchPlan("args.micro", numbers[0], "args.accumulation", numbers[1])
            assert changed.micro * changed.accumulation == batch.micro * batch.accumulation, "the global batch stays"
            batch = changed
            facts = replace(facts, batch=batch)
        history.append(PastAttempt(kind, verdict.action, further, verdict.steps_used))


@given(retries, st.lists(kinds, min_size=400, max_size=400))
def test_without_progress_every_run_ends(retry: Retry, story: list[str]) -> None:
    history: list[PastAttempt] = []
    for kind in story:
        verdict = decide(diagnosis(kind, bad_nodes=("n1",)), history, STILL, Policy(retry, FACTS))
        history.append(PastAttempt(kind, verdict.action, False, verdict.steps_used))
        if verdict.action in ("STOP", "NONE"):
            break
    assert len(history) <= retry.max_attempts
