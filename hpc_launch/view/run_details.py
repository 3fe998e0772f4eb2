"""The details of one run, and the summary at its end."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.submission import Overrides
from hpc_launch.runs.status.run_status import AttemptStatus, RunStatus
from hpc_launch.view.format_values import clean, clock_time, duration, hosts, pad
from hpc_launch.view.log_output import last_lines
from hpc_launch.view.state_text import (
    elapsed,
    fraction,
    last_attempt,
    next_commands,
    progress_parts,
    reason_text,
    source_text,
    startup_text,
    waiting_parts,
)
from hpc_launch.view.terminal import painted
from hpc_launch.view.time_text import time_line

if TYPE_CHECKING:
    from hpc_launch.performance.time_account import TimeAccount

BAR = 30
"""Width of the plain-text progress bar, in columns."""

LAST_LINES = 10
"""Number of log lines in the summary of a run that did not complete."""

Field = tuple[str, str]


def details(
    status: RunStatus,
    *,
    account: TimeAccount | None = None,
    hosts_of_run: Sequence[str] = (),
    colour: bool = False,
    now: float | None = None,
) -> list[str]:
    """The details of a run, one field per line. `hosts_of_run` are lines about its hosts."""
    current = time.time() if now is None else now
    source = source_text(status)
    state = painted(status.state, status.state, colour=colour) + (f", {source}" if source else "")
    fields: list[Field] = [("state", state)]
    fields += [("why", reason_text(status))] if status.reason else []
    fields += _named("warning", [clean(warning) for warning in status.warnings])
    startup = startup_text(status, current)
    fields += [("phase", startup)] if startup else []
    waiting = waiting_parts(status, current)
    fields += [("next start", ", ".join(waiting))] if waiting else []
    fields += _successor(status)
    fields += _progress(status)
    spent = time_line(account) if account is not None else ""
    fields += [("time", spent)] if spent else []
    fields += [("site", clean(status.site))] if status.site else []
    lines = [_attempt(attempt, current) for attempt in status.attempts]
    fields += _named("attempts" if len(lines) > 1 else "attempt", lines)
    fields += _named("hosts", [clean(line) for line in hosts_of_run])
    fields += _places(status)
    fields += _next(status)
    return [clean(status.run), *_aligned(fields)]


def summary(status: RunStatus, *, colour: bool = False, now: float | None = None) -> list[str]:
    """How a run ended, where its output is and what to do next."""
    spent = elapsed(last_attempt(status), time.time() if now is None else now)
    state = painted(status.state, status.state, colour=colour)
    title = f"{clean(status.run)} {state}" + (f" after {duration(spent)}" if spent is not None else "")
    fields: list[Field] = [("why", reason_text(status))] if status.reason else []
    progress = progress_parts(status)
    fields += [("reached", ", ".join(progress))] if progress else []
    if status.state in ("FAILED", "STOPPED"):
        fields += _evidence(status)
    fields += _places(status)
    fields += _next(status)
    return [title, *_aligned(fields)]


def _evidence(status: RunStatus) -> list[Field]:
    """The evidence of the verdict, or the last lines of rank 0 if there is none."""
    attempt = last_attempt(status)
    quotes = attempt.evidence[:LAST_LINES] if attempt is not None else ()
    if not quotes:
        return _named("last lines", [f"| {line}" for line in last_lines(status, LAST_LINES)])
    places = [f"{quote.file}:{quote.line or ''}".rstrip(":") for quote in quotes]
    return _named("evidence", [f"{clean(at)} | {clean(one.text)}" for at, one in zip(places, quotes, strict=True)])


def bar(done: float) -> str:
    """A progress bar; `done` is a fraction from 0 to 1."""
    filled = int(done * BAR)
    return "#" * filled + "-" * (BAR - filled)


def _progress(status: RunStatus) -> list[Field]:
    progress = progress_parts(status)
    done = fraction(status.progress)
    lines = [f"[{bar(done)}] {done:.0%}"] if done is not None else []
    lines += [", ".join(progress)] if progress else []
    return _named("progress", lines)


def _successor(status: RunStatus) -> list[Field]:
    """The job that takes over; the reason of a RETRYING run names it."""
    job = status.successor
    if job is None or status.state == "RETRYING" or status.final:
        return []
    return [
        ("successor", f"job {clean(job.job_id)}, {clean(job.state)}: takes over if this job ends before the run does")
    ]


def _attempt(attempt: AttemptStatus, now: float) -> str:
    parts = [f"{attempt.number}: {clean(attempt.state)}"]
    if attempt.job_id is not None:
        parts.append(f"job {clean(attempt.job_id)}")
    if attempt.nodes:
        parts.append(f"on {hosts(attempt.nodes)}")
    if attempt.exit_code is not None:
        parts.append(f"exit code {attempt.exit_code}")
    began = attempt.started if attempt.started is not None else attempt.submitted
    if began is not None:
        parts.append(f"{'started' if attempt.started is not None else 'submitted'} {clock_time(began, now)}")
    spent = elapsed(attempt, now)
    if spent is not None:
        parts.append(f"{'took' if attempt.ended is not None else 'so far'} {duration(spent)}")
    if attempt.verdict not in (None, "NONE"):
        parts.append(f"{clean(attempt.failure_class)}: {clean(attempt.verdict)}")
    changes = _changes(attempt.overrides)
    if changes:
        parts.append(f"changed: {changes}")
    return ", ".join(parts)


def _places(status: RunStatus) -> list[Field]:
    fields: list[Field] = [("folder", clean(status.folder))]
    attempt = last_attempt(status)
    if attempt is not None:
        folder = AttemptFolder(attempt.folder)
        logs = folder.logs if any(folder.logs.glob("node-*.log")) else folder.batch_log
        fields += [("logs", clean(logs))] if os.path.exists(logs) else []
    checkpoints = status.folder / "checkpoints"
    fields += [("checkpoints", clean(checkpoints))] if os.path.isdir(checkpoints) else []
    fields += _upload(status)
    return fields


def _upload(status: RunStatus) -> list[Field]:
    """The command that uploads wandb's offline runs (see plan.trackers)."""
    folder = status.folder / "wandb"
    if not status.final or not any(folder.glob("offline-run-*")):
        return []
    return [("upload", f"wandb sync {shlex.quote(clean(folder))}/offline-run-*")]


def _next(status: RunStatus) -> list[Field]:
    commands = next_commands(status)
    width = max(len(command) for command, _ in commands)
    return _named("next", [f"{pad(command, width)}  {purpose}" for command, purpose in commands])


def _named(name: str, lines: list[str]) -> list[Field]:
    return [(name if at == 0 else "", line) for at, line in enumerate(lines)]


def _aligned(fields: list[Field]) -> list[str]:
    width = max((len(name) for name, _ in fields), default=0)
    return [f"  {pad(name, width)}  {value}" for name, value in fields]


def _changes(overrides: Overrides) -> str:
    """The overrides of an attempt as options: `--set args.lr=0.1 --exclude n3`."""
    options = []
    for name, values in overrides.by_name().items():
        option = "exclude" if name == "ledger" else name  # nodes that other runs recorded as bad
        options += [f"--{option} {value}" for value in values]
    return clean(" ".join(options))
