"""One look of a driver, in a process of its own: `python -m tests.retry.driver SCHEDULER RUN CLASS VERDICT [NODE]`.

Prints what it did.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hpc_launch.recover.diagnosis import Action, Diagnosis
from hpc_launch.retry.driver_outcome import DriverOutcome
from hpc_launch.retry.recover_run import recover
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.status.tracker import RunTracker
from tests.run.fake import FakeScheduler


def drive(
    run: RunFolder, scheduler: FakeScheduler, kind: str, action: Action, *nodes: str, inside: bool = False
) -> DriverOutcome:
    """What a driver does that diagnoses the last attempt so."""
    told = Diagnosis(kind, confidence="high", bad_nodes=nodes, default_verdict=action)
    tracker = RunTracker([run], lambda _: scheduler, clock=scheduler.clock)
    tracker.poll(fresh=True)
    return recover(run, tracker, scheduler, inside=inside, diagnose=lambda *_: told)


def main(arguments: list[str]) -> int:
    scheduler, run = FakeScheduler(Path(arguments[0])), RunFolder(Path(arguments[1]))
    kind, action, *nodes = arguments[2:]
    move = drive(run, scheduler, kind, action, *nodes)  # type: ignore[arg-type]
    print(move.kind, move.words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
