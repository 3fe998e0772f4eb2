"""Find possible root causes in torchrun's lists of failed workers and in their error files."""

from __future__ import annotations

import math

from hpc_launch.diagnose.candidates import Candidate
from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.diagnose.evidence import Evidence, WorkerFailure
from hpc_launch.diagnose.log_candidates import is_denied
from hpc_launch.diagnose.rulebook import Rulebook


def from_workers(evidence: Evidence, rules: Rulebook) -> list[Candidate]:
    """Candidates from torchrun's lists and error files. The rules for log lines apply to their messages too."""
    found: list[Candidate] = []
    for worker in workers_of(evidence):
        if not worker.message:
            found += _of_silent(worker)
            continue
        matches = rules.matches(worker.message.splitlines()[0][:4000])
        special = any(rule.order > 40 and rule.id != "error-word" for rule, _ in matches)
        for rule, match in matches:
            denied = evidence.of_a_run and is_denied(rules.class_of(rule), evidence.end)
            if denied or rule.role == "context" or (rule.order == 40 and special):
                continue
            groups = match.groupdict()
            found.append(
                Candidate(
                    failure_class=rules.class_of(rule),
                    cause=rule.cause,
                    order=rule.order,
                    quotes=(Quote(worker.file, worker.line, worker.message.splitlines()[0][:600]),),
                    node=worker.node,
                    rank=worker.rank,
                    time=worker.time,
                    peer=groups.get("peer"),
                    verdict=rule.verdict,
                    advice=rule.advice,
                    source=worker.source,
                    line=worker.line,
                    rule=rule.id,
                )
            )
            break
    return found


def workers_of(evidence: Evidence) -> list[WorkerFailure]:
    """Failed workers that torchrun did not end itself, earliest first; torchrun's own claim only breaks ties."""
    workers = [worker for scan in evidence.logs for worker in scan.workers if worker.exit_code != -15]
    return sorted(
        workers,
        key=lambda worker: (
            math.inf if worker.time is None else worker.time, not worker.said_root, worker.source, worker.line
        ),
    )  # fmt: skip


def _of_silent(worker: WorkerFailure) -> list[Candidate]:
    """A worker that ended with its own exit code and no exception: no other process can cause that."""
    if worker.exit_code is None or worker.exit_code <= 1:
        return []
    text = f"exitcode  : {worker.exit_code}"
    return [
        Candidate(
            "user_code_error",
            "torchrun_worker_exit_code",
            47,
            (Quote(worker.file, worker.exit_line, text),),
            worker.node,
            worker.rank,
            worker.time,
            source=worker.source,
            line=worker.line,
            rule="torchrun-exit",
            advice=f"check what exit code {worker.exit_code} means in the program; it printed no message",
        )
    ]
