"""One look of a driver, in a process of its own.

`python -m tests.retry.driver SCHEDULER RUN CLASS VERDICT [NODE] [--here]` prints what it did.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

from hpc_launch.diagnose.diagnosis import Action
from hpc_launch.diagnose.evidence import Evidence, Hit, LogScan
from hpc_launch.diagnose.rulebook import FailureRule, Rulebook, shipped
from hpc_launch.retry import decision
from hpc_launch.retry.drivers import DriverOutcome
from hpc_launch.retry.recover_run import recover
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.schedulers.scheduler import JobRecord
from tests.runs.fake import FakeScheduler

SHIPPED = shipped()


def drive(
    run: RunFolder,
    scheduler: FakeScheduler,
    kind: str,
    action: Action,
    *nodes: str,
    inside: bool = False,
    here: bool = False,
    successor: bool = False,
    log: str = "batch.log",
) -> DriverOutcome:
    """What a driver does that finds one line of srun in the log: of this class, with this verdict, naming this node."""
    line = {"id": "line", "cause": "unknown", "match": "it failed", "examples": [], "source": "", "order": 10}
    rule = FailureRule(**line, failure_class=kind, verdict=action)  # type: ignore[arg-type]
    book = Rulebook([rule], SHIPPED.causes, SHIPPED.classes)

    def gather(attempt: AttemptFolder, rules: Rulebook, record: JobRecord | None) -> Evidence:
        files = Reader().read(attempt)
        hit = Hit("line", log, 1, "srun: error: it failed", blames=nodes[0] if nodes else None)
        cancelled_by = files.cancel.by if files.cancel is not None else None
        scan = LogScan(log, lines=1, hits=(hit,))
        return Evidence(logs=(scan,), nodes=files.nodes, cancelled_by=cancelled_by, of_a_run=True)

    tracker = RunTracker([run], lambda _: scheduler, clock=scheduler.clock)
    tracker.poll(fresh=True)
    with patch.object(decision, "gather", gather), patch.object(decision, "rulebook", lambda: book):
        return recover(run, tracker, scheduler, inside=inside, here=here, successor=successor)


def jobs(run: RunFolder) -> list[str | None]:
    """The job of each attempt."""
    return [Reader().read(attempt).job_id for attempt in run.attempts()]


def main(arguments: list[str]) -> int:
    scheduler, run = FakeScheduler(Path(arguments[0])), RunFolder(Path(arguments[1]))
    kind, action, *nodes = (word for word in arguments[2:] if word != "--here")
    here = "--here" in arguments
    move = drive(run, scheduler, kind, action, *nodes, inside=here, here=here)  # type: ignore[arg-type]
    print(move.kind, move.words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
