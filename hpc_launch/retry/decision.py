"""The diagnosis of a run's last attempt, and the verdict on it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from msgspec import structs
from msgspec.structs import replace

from hpc_launch.base.errors import UserError
from hpc_launch.base.user_dirs import user
from hpc_launch.diagnose.decide_verdict import AttemptProgress, PastAttempt, Policy, decide
from hpc_launch.diagnose.diagnose import diagnose, diagnose_records, may_be_node_failure
from hpc_launch.diagnose.diagnosis import Action, Diagnosis, Verdict
from hpc_launch.diagnose.evidence import DriverFacts, Evidence
from hpc_launch.diagnose.node_health import NodeReport
from hpc_launch.diagnose.retry_changes import BatchState, ChangeFacts
from hpc_launch.diagnose.rulebook import Rulebook
from hpc_launch.retry.context import RetryContext, complete, driver_facts, is_over, progress_of
from hpc_launch.retry.next_attempt import next_attempt
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.node_health_store import NodeHealthStore, quotes
from hpc_launch.runs.records.journal import Journal
from hpc_launch.runs.records.plan_record import plan_of
from hpc_launch.runs.records.verdict_record import VerdictRecord, verdict_record
from hpc_launch.runs.submitting.run_store import PreparedAttempt
from hpc_launch.schedulers.scheduler import JobRecord

_FAILED = re.compile(r"down|fail|unk|.*\*")
"""States of nodes that failed, or do not respond (`*`; sinfo(1)). An administrator drains healthy nodes too."""

Gather = Callable[[AttemptFolder, Rulebook, "JobRecord | None"], Evidence]
"""Collects the evidence in an attempt's folder: run.diagnosis.collect_evidence.gather."""


@dataclass(frozen=True)
class Decision:
    """A verdict, not yet on record, and the changed attempt that it asks for."""

    verdict: VerdictRecord
    changed: PreparedAttempt | None = None
    problem: str | None = None
    """Why the team does not get the report on the bad nodes."""


def diagnose_now(context: RetryContext, gather: Gather | None, rules: Rulebook, *, inside: bool) -> Diagnosis | None:
    """The diagnosis of the attempt; None while it is not over, or where only the scheduler will know the cause."""
    facts = driver_facts(context, inside=inside)
    files = context.view.files
    found = diagnose_records(Evidence(void=files.void, driver=facts, nodes=files.nodes, of_a_run=True), rules)
    if found is not None or not is_over(context, inside=inside):
        return found
    evidence = replace((gather or _gather)(context.attempt, rules, context.view.final_record), driver=facts)
    if may_be_node_failure(evidence, rules):
        down = context.scheduler.down(evidence.nodes)
        states = tuple((node, state) for node, state in down.items() if _FAILED.match(state))
        evidence = replace(evidence, driver=replace(facts, node_states=states))
    return diagnose(evidence, rules)


def diagnose_never_starts(context: RetryContext, facts: DriverFacts, rules: Rulebook) -> Diagnosis | None:
    """The diagnosis of a pending job that can never start."""
    facts = replace(facts, excluded=context.excluded if context.follows_verdict else ())
    return diagnose_records(Evidence(driver=facts, of_a_run=True), rules)


def make_decision(context: RetryContext, diagnosis: Diagnosis, *, withdrawn: bool = False) -> Decision:
    """The verdict on the attempt. A changed attempt is planned here, once: a refused plan stops the run."""
    never_ran = withdrawn or context.view.files.void is not None
    step, progress = (None, AttemptProgress(False)) if never_ran else progress_of(context)
    policy = Policy(context.plan.retry, _change_facts(context, diagnosis), avoided=context.excluded)
    verdict, changed = decide(diagnosis, _history(context), progress, policy), None
    cancel = context.view.files.cancel
    if cancel is not None and verdict.action not in ("STOP", "NONE"):
        verdict = Verdict("STOP", f"cancelled by {cancel.by or 'a user'}")
    trained = complete(context, step)
    if trained is not None and verdict.action not in ("STOP", "NONE"):
        verdict = Verdict("STOP", f"{trained}; then it ended with {diagnosis.failure_class}. To repeat it, resubmit it")
    if verdict.sets:
        try:
            _, changed = next_attempt(context.run, sets=verdict.sets, exclude=verdict.exclude)
        except UserError as error:
            reason = f"{verdict.reason}; the changed job is refused: {' '.join(str(error).split())}"
            verdict = Verdict("STOP", reason)
    record = verdict_record(
        diagnosis, verdict, context.view.now, further=progress.further, step=step, withdrawn=withdrawn
    )
    return Decision(record, changed)


def report_bad_nodes(context: RetryContext, diagnosis: Diagnosis) -> str | None:
    """Record the nodes that the scheduler or the watcher reports, for the team's other jobs.

    Returns why the team does not get them.

    On a failed write verdict.json has them.
    """
    reports = [
        NodeReport(
            time=time.time(),
            node=node,
            by=user(),
            failure_class=diagnosis.failure_class,
            cause=diagnosis.cause,
            run=context.run.name,
            attempt=context.attempt.number,
            job_id=context.view.job_id,
            evidence=quotes(diagnosis.evidence),
        )
        for node in diagnosis.proven_nodes
    ]
    if not reports:
        return None
    try:
        problem = NodeHealthStore(context.status.site, context.plan.ledger).write(reports)
    except OSError as error:
        problem = f"cannot record the bad nodes: {error.strerror or error}"
    if problem is not None:
        Journal(context.run).note("node report", attempt=context.attempt.number, reason=problem)
    return problem


def _history(context: RetryContext) -> list[PastAttempt]:
    return [
        PastAttempt(
            failure_class=verdict.failure_class,
            action=cast("Action", verdict.action),
            progressed=verdict.further,
            steps_used=verdict.steps_used,
            blamed=verdict.blamed,
            cause=verdict.cause,
            exclude=verdict.exclude,
            sets=verdict.sets,
        )
        for verdict in context.verdicts_before()
        if verdict is not None
    ]


def _change_facts(context: RetryContext, diagnosis: Diagnosis) -> ChangeFacts:
    plan, batch, recorded = context.plan, context.plan.batch, plan_of(context.attempt)
    size = plan.site_hosts or (context.scheduler.size(plan.partition) if diagnosis.bad_nodes else None)
    return ChangeFacts(
        batch=BatchState(*structs.astuple(batch)) if batch is not None else None,
        memory=plan.memory,
        node_memory=plan.node_memory,
        time_s=plan.time_s,
        most_time_s=plan.most_time_s,
        nodes=plan.nodes,
        max_nodes=plan.max_nodes,
        spare_nodes=None if size is None else max(size - plan.least_nodes - len(plan.exclude), 0),
        queue=plan.queue,
        excluded=recorded.excluded if recorded is not None else (),
    )


def _gather(attempt: AttemptFolder, rules: Rulebook, record: JobRecord | None) -> Evidence:
    from hpc_launch.runs.evidence.collect_evidence import gather

    return gather(attempt, rules, record)
