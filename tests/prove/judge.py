"""From what a run left behind to the outcome of its row: the figures of the table, and each expectation that failed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from hpc_launch.runs.status.run_status import FINAL_RUN_STATES
from tests.prove.row import Outcome, Row
from tests.prove.scene import Line, Scene

NEAR = 1e-3


def judge(scene: Scene, status: dict[str, Any], reference: float | None) -> Outcome:
    """Compare a run with what its row says."""
    row, record, attempts = scene.row, scene.record(), status["attempts"]
    outcome = Outcome(row.key, state=status["state"], attempts=len(attempts), reason=status["reason"] or "")
    outcome.folder = str(scene.run.get("folder", ""))
    outcome.reference = reference
    failed = next((one for one in attempts if one.get("class") not in (None, "success")), attempts[0])
    why = scene.why(failed["number"])
    first = why.get("first_failure", {})
    outcome.found = failed.get("class") or why.get("class") or ""
    outcome.verdict = failed.get("verdict") or ""
    outcome.cause = why.get("cause") or ""
    outcome.node = first.get("node") or ""
    outcome.rank = "" if first.get("rank") is None else str(first["rank"])
    _measure(scene, outcome, record)
    outcome.faults += _wrong(row, outcome, scene, why)
    outcome.faults += _wrong_time(scene)
    outcome.faults += row.after(scene)
    outcome.ok = not outcome.faults
    return outcome


def _measure(scene: Scene, outcome: Outcome, record: list[Line]) -> None:
    steps = [line for line in record if line.what == "step"]
    planted = next((line.time for line in record if line.what == "fault"), scene.planted)
    if planted is None and steps:
        planted = max(line.time for line in steps if line.attempt == steps[0].attempt)
    after = [line for line in steps if line.attempt > 1]
    if planted is not None and after:
        outcome.resumed_s = round(after[0].time - planted, 1)
    if after:
        reached = max((int(line.words[0]) for line in steps if line.attempt == 1), default=0)
        outcome.lost_steps = reached - int(after[0].words[0]) + 1
    last = [line for line in steps if int(line.words[0]) == total(scene)]
    if last:
        outcome.loss = float(last[-1].words[1])
    outcome.doubled = _two_at_once(record)


def total(scene: Scene) -> int:
    """The last step of the row's training."""
    return int(scene.row.args.get("steps", 14))


def _two_at_once(record: list[Line]) -> bool:
    """Whether two trainings of the run made steps between one another, or one attempt started a rank twice."""
    order = [line.attempt for line in record if line.what == "step"]
    starts = Counter((line.attempt, line.words[0]) for line in record if line.what == "start")
    return order != sorted(order) or any(count > 1 for count in starts.values())


def _wrong(row: Row, outcome: Outcome, scene: Scene, why: dict[str, Any]) -> list[str]:
    checks: list[tuple[str, object, tuple[object, ...]]] = [
        ("state", outcome.state, (row.state,)),
        ("class", outcome.found, row.classes),
        ("`why`", why.get("class", outcome.found), (outcome.found,)),
        ("verdict", outcome.verdict, row.verdicts),
        ("attempts", outcome.attempts, (row.attempts,) if isinstance(row.attempts, int) else row.attempts),
    ]
    if row.node is not None:
        checks.append(("node", outcome.node, (scene.struck,)))
    if row.rank is not None:
        checks.append(("rank", outcome.rank, (str(row.rank),)))
    wrong = [
        f"{what} {found or 'none'} for {' or '.join(map(str, wanted))}: {outcome.reason}"
        for what, found, wanted in checks
        if found not in wanted
    ]
    if not outcome.reason and outcome.state != "COMPLETED":
        wrong.append("it ends in silence")
    if outcome.doubled:
        wrong.append("two trainings of one attempt, or two attempts at once")
    if row.loss is not None:
        wrong += _wrong_loss(row, outcome)
    return wrong


def _wrong_time(scene: Scene) -> list[str]:
    """The categories of the run's time are its wall time, from its creation to the end of its last job.

    A run may be over before the scheduler has recorded the end of its job, so its time is asked for last.
    """
    status = scene.status()
    folder, seconds = Path(scene.run.get("folder", "")), status["time"]
    created = read_time(folder / "run.json", "created")
    last = folder / "attempts" / f"{len(status['attempts']):03d}"
    ends = [end for name in ("final.json", "end.json") if (end := read_time(last / name, "ended")) is not None]
    if created is None or not ends or status["state"] not in FINAL_RUN_STATES:
        return []
    wall, total_s = max(ends) - created, sum(seconds.values())
    if min(seconds.values()) < 0 or abs(total_s - wall) > max(0.01 * wall, 0.1):
        return [f"the categories of the time add up to {total_s:.1f} s of {wall:.1f} s: {seconds}"]
    return []


def read_time(path: Path, name: str) -> float | None:
    """A time in a record; None for none."""
    try:
        value = json.loads(path.read_text()).get(name)
    except (OSError, ValueError):
        return None
    return float(value) if value is not None else None


def _wrong_loss(row: Row, outcome: Outcome) -> list[str]:
    if outcome.loss is None or outcome.reference is None:
        return [f"no final loss (undisturbed: {outcome.reference})"]
    far = abs(outcome.loss - outcome.reference)
    if far > (0 if row.loss == "same" else NEAR):
        return [f"final loss {outcome.loss!r} for {outcome.reference!r}"]
    return []
