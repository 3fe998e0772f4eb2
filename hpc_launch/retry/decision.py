"""The diagnosis of a run's last attempt, the verdict on it, and the next attempt, from what the run folder recorded."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from hpc_launch.base.errors import UsageError, UserError
from hpc_launch.base.files import read_text, user
from hpc_launch.diagnose.decide_verdict import AttemptProgress, ChangeFacts, Policy, decide
from hpc_launch.diagnose.diagnose import diagnose, diagnose_records, may_be_node_failure
from hpc_launch.diagnose.diagnosis import Diagnosis, Verdict
from hpc_launch.diagnose.evidence import DriverFacts, Evidence, NeverStarts
from hpc_launch.diagnose.node_health import NodeReport
from hpc_launch.prepare.attempts import attempt_of, prepare
from hpc_launch.prepare.prepare import PreparedJob, prepare_job
from hpc_launch.retry.context import RetryContext, complete, driver_facts, is_over, progress_of
from hpc_launch.runs.collect_evidence import gather, rulebook, with_original, with_role
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.node_health_store import NodeHealthStore, quotes
from hpc_launch.runs.records.plan_record import PlanRecord, changed_size, newest_plan, plan_of
from hpc_launch.runs.records.run_info import Journal, read_info, refuse_foreign
from hpc_launch.runs.records.verdict_record import VerdictRecord, verdict_record
from hpc_launch.runs.submitting.run_store import PreparedAttempt


def next_attempt(
    run: RunFolder, *, sets: Sequence[str] = (), exclude: Sequence[str] = (), readmit: Sequence[str] = ()
) -> tuple[PreparedJob, PreparedAttempt]:
    """The next attempt of a run: its recorded job file and site, its earlier `--set` options, then the new ones.

    Raises UsageError where the folder does not hold a run, Refused as a first submission does.
    """
    recorded = _recorded(run, exclude, readmit)
    all_sets = [*(text for text in recorded.sets if text not in sets), *sets]
    job_folder = recorded.job_folder or str(run.path)
    site = str(run.site_yaml)
    ready = prepare_job(run.job_yaml, site=site, sets=all_sets, job_folder=job_folder, avoid=recorded.excluded)
    return ready, prepare(
        ready, all_sets, recorded.excluded, job_file=recorded.job_file, readmitted=recorded.readmitted
    )


def following_attempt(
    run: RunFolder,
    verdict: VerdictRecord,
    now: float,
    *,
    after: str | None = None,
) -> PreparedAttempt:
    """The attempt that a verdict asks for. Without changes it has the same script as the last attempt.

    Slurm waits for what is left `now` of the verdict's pause (`--begin`), and for the end of the job `after`.

    Raises UsageError where the folder does not hold a run, Refused as a first submission does.
    """
    info = read_info(run)
    names_hosts = info is not None and info.scheduler == "ssh"  # in the script itself
    if verdict.sets or ((verdict.exclude or verdict.readmit) and names_hosts):
        _, prepared = next_attempt(run, sets=verdict.sets, exclude=verdict.exclude, readmit=verdict.readmit)
    else:
        prepared = _repeated(run, verdict.exclude, verdict.readmit)
    options = [f"--dependency=afterany:{after}"] if after is not None else []
    if verdict.not_before > now:
        options.append(f"--begin=now+{math.ceil(verdict.not_before - now)}")
    return replace(prepared, options=(*prepared.options, *options))


COMES_BACK = frozenset({"host_connection", "host_in_use"})
"""Causes whose hosts are used again once they answer: the submission looks at each host."""


def hosts_back(context: RetryContext, verdict: VerdictRecord) -> Iterator[str]:
    """The hosts that an earlier verdict excluded because they were not reached or in use, and that answer now."""
    plan = newest_plan(context.run)
    if context.slurm or plan is None or not plan.excluded:
        return
    earlier = (one for one in context.verdicts_before() if one is not None and one.cause in COMES_BACK)
    for host in dict.fromkeys(host for one in earlier for host in one.exclude):
        if host in plan.excluded and host not in verdict.exclude and not context.scheduler.nodes([host]).get(host):
            yield host


def _repeated(run: RunFolder, exclude: Sequence[str], readmit: Sequence[str]) -> PreparedAttempt:
    """The last attempt again. Nothing is read, merged or detected again, so that any node can prepare it."""
    recorded, info = _recorded(run, exclude, readmit), read_info(run)
    script = next((attempt.script for attempt in reversed(run.attempts()) if os.path.isfile(attempt.script)), None)
    if info is None or script is None or recorded.recovery is None:
        raise UsageError(f"{run.path} has no attempt to repeat", "submit the job file again")
    text = read_text(script, errors="surrogateescape", owner=os.getuid())
    return attempt_of(recorded, info.scheduler, text, run.path.parent)


def _recorded(run: RunFolder, exclude: Sequence[str] = (), readmit: Sequence[str] = ()) -> PlanRecord:
    """The plan of the run's last attempt, with further nodes to exclude or to use again.

    Raises UsageError where there is none.
    """
    refuse_foreign(run)
    plan = newest_plan(run)
    if plan is None:
        raise UsageError(f"{run.path} has no attempt to repeat", "submit the job file again")
    excluded = tuple(node for node in dict.fromkeys([*plan.excluded, *exclude]) if node not in readmit)
    return structs.replace(plan, excluded=excluded, readmitted=tuple(dict.fromkeys([*plan.readmitted, *readmit])))


_FAILED = re.compile(r"down|fail|unk|.*\*")
"""States of nodes that failed, or do not respond (`*`; sinfo(1)). An administrator drains healthy nodes too."""


def diagnose_now(context: RetryContext, *, inside: bool) -> Diagnosis | None:
    """The diagnosis of the attempt; None while it is not over, or where only the scheduler will know the cause."""
    facts, rules = driver_facts(context, inside=inside), rulebook()
    files = context.view.files
    found = diagnose_records(Evidence(void=files.void, driver=facts, nodes=files.nodes, of_a_run=True), rules)
    if found is not None or not is_over(context, inside=inside):
        return found
    evidence = structs.replace(gather(context.attempt, rules, context.view.final_record), driver=facts)
    if context.slurm and may_be_node_failure(evidence, rules):
        known = context.scheduler.nodes(evidence.nodes)
        states = tuple((node, state) for node, state in known.items() if _FAILED.match(state))
        evidence = structs.replace(evidence, driver=structs.replace(facts, node_states=states))
    return with_role(with_original(diagnose(evidence, rules), context.run), context.attempt)


def diagnose_never_starts(context: RetryContext, job: NeverStarts) -> Diagnosis | None:
    """The diagnosis of a pending job that can never start."""
    facts = DriverFacts(never_starts=job, excluded=context.excluded if context.follows_verdict else ())
    return diagnose_records(Evidence(driver=facts, of_a_run=True), rulebook())


def make_verdict(context: RetryContext, diagnosis: Diagnosis, *, withdrawn: bool = False) -> VerdictRecord:
    """The verdict on the attempt, not yet on record. A changed attempt is planned: a refused plan stops the run."""
    never_ran = withdrawn or context.view.files.void is not None
    step, progress = (None, AttemptProgress(False)) if never_ran else progress_of(context)
    policy = Policy(context.plan.retry, _change_facts(context, diagnosis), avoided=context.excluded)
    history = [past for past in context.verdicts_before() if past is not None]
    verdict = decide(diagnosis, history, progress, policy)
    cancel = context.view.files.cancel
    if cancel is not None and verdict.action not in ("STOP", "NONE"):
        verdict = Verdict("STOP", f"cancelled by {cancel.by or 'a user'}")
    trained = complete(context, step)
    if trained is not None and verdict.action not in ("STOP", "NONE"):
        verdict = Verdict("STOP", f"{trained}; then it ended with {diagnosis.failure_class}. To repeat it, resubmit it")
    plan = plan_of(context.attempt)
    if verdict.sets or (verdict.exclude and plan is not None and plan.scheduler == "ssh"):
        try:
            ready, _ = next_attempt(context.run, sets=verdict.sets, exclude=verdict.exclude, readmit=verdict.readmit)
        except UserError as error:
            reason = f"{verdict.reason}; the changed job is refused: {' '.join(str(error).split())}"
            verdict = Verdict("STOP", reason)
        else:
            words = changed_size(plan, ready.plan.world_size)
            verdict = structs.replace(verdict, reason=f"{verdict.reason}; {words}" if words else verdict.reason)
    return verdict_record(
        diagnosis, verdict, context.view.now, further=progress.further, step=step, withdrawn=withdrawn
    )


def report_bad_nodes(context: RetryContext, diagnosis: Diagnosis) -> str | None:
    """Record the nodes that the scheduler or the watcher reports, for the team's other jobs.

    Returns why the team does not get them; verdict.json has them all the same.
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


def _change_facts(context: RetryContext, diagnosis: Diagnosis) -> ChangeFacts:
    plan, recorded = context.plan, plan_of(context.attempt)
    role, key = diagnosis.first_failure.role, plan.batch.micro_key if plan.batch is not None else ""
    if role is not None and key.startswith("roles.") and not key.startswith(f"roles.{role.partition('.')[0]}."):
        plan = structs.replace(plan, batch=None)  # another program ran out of memory
    size = plan.site_hosts or (context.scheduler.size(plan.partition) if diagnosis.bad_nodes else None)
    return ChangeFacts(
        **structs.asdict(plan),
        spare_nodes=None if size is None else max(size - plan.least_nodes - len(plan.exclude), 0),
        excluded=recorded.excluded if recorded is not None else (),
    )
