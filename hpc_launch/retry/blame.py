"""Which nodes a failure is to be blamed on, and noting them for the team's other jobs."""

from __future__ import annotations

import time
from contextlib import suppress

from msgspec.structs import replace

from hpc_launch.base.user_dirs import user
from hpc_launch.recover.diagnosis import Diagnosis, Quote
from hpc_launch.recover.node_health import NodeReport
from hpc_launch.retry.decision import RetryContext
from hpc_launch.run.node_health_store import NodeHealthStore, quotes


def named(found: RetryContext, told: Diagnosis) -> Diagnosis:
    """The diagnosis of a failed node with the node's name, where no log tells it.

    The log of a batch host that died just stops. So the only node of a job is to blame, or those of several that the
    scheduler has taken out of service since.
    """
    if told.failure_class != "node_failure" or told.bad_nodes:
        return told
    attempt = found.status.attempts[-1]
    if len(attempt.nodes) == 1:
        quote = Quote("scheduler", 0, f"{attempt.state}, and {attempt.nodes[0]} was the only node")
        return _blaming(told, attempt.nodes, (quote,))
    down = found.scheduler.down(attempt.nodes) if attempt.nodes else {}
    if not down or len(down) == len(attempt.nodes):
        return told
    quotes_of_it = tuple(Quote("sinfo", 0, f"{node} {state}") for node, state in down.items())
    return _blaming(told, tuple(down), quotes_of_it)


def _blaming(told: Diagnosis, nodes: tuple[str, ...], evidence: tuple[Quote, ...]) -> Diagnosis:
    elsewhere = told.default_verdict if told.default_verdict == "STOP" else "RETRY_ELSEWHERE"
    return replace(told, bad_nodes=nodes, evidence=(*told.evidence, *evidence), default_verdict=elsewhere)


def note(found: RetryContext, told: Diagnosis) -> None:
    """Note the nodes that a diagnosis blames. What cannot be written is left: the run's own record has it too."""
    notes = [
        NodeReport(
            time=time.time(),
            node=node,
            by=user(),
            failure_class=told.failure_class,
            cause=told.cause,
            run=found.run.name,
            attempt=found.attempt.number,
            job_id=found.case.job_id,
            evidence=quotes(told.evidence),
        )
        for node in told.bad_nodes
    ]
    if notes:
        with suppress(OSError):
            NodeHealthStore(found.status.site, found.plan.ledger).write(notes)
