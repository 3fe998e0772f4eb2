"""The details of one run, the summary at its end, and lines of its logs with their origin."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Sequence

from hpc_launch.base.errors import UsageError
from hpc_launch.performance.efficiency import Efficiency
from hpc_launch.performance.time_account import TimeAccount
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.rank_logs import RankLogLine, log_files
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.status.progress_reader import tail_lines
from hpc_launch.runs.status.run_status import AttemptStatus, RunStatus
from hpc_launch.view.format_values import clean, clock_time, duration, hosts, log_lines, pad
from hpc_launch.view.run_table import efficiency_fields
from hpc_launch.view.state_text import (
    elapsed,
    next_commands,
    progress_parts,
    reason_text,
    role_lines,
    source_text,
    startup_text,
    time_line,
    tunnel,
    waiting_parts,
)
from hpc_launch.view.terminal import painted

BATCH = "batch"
"""Prefix of the batch script's lines."""


def log_text(line: RankLogLine, *, one_node: bool, one_rank: bool, as_json: bool = False) -> str:
    """A line for the terminal: without escapes, prefixed with its file unless a node or rank was selected.

    `as_json`: a JSON object instead.
    """
    name = BATCH if line.file.node is None else line.file.path.name.removesuffix(".log")
    if as_json:
        item = {"attempt": line.file.attempt, "file": name, "node": line.node, "rank": line.rank, "text": line.text}
        return f"{json.dumps(item)}\n"
    known = one_rank or (one_node and line.file.rank is None)
    prefix = "" if known else f"{name:<6} | "
    return "".join(f"{prefix}{part}\n" for part in log_lines(line.text))


def choose_node(wanted: str, attempt: AttemptFolder) -> int | None:
    """The index of a node given by index or host name; None if one host is all the nodes of a local run.

    Raises UsageError for a node that is not known to be part of the attempt.
    """
    numbers = sorted({file.node for file in log_files(attempt) if file.node is not None})
    names = Reader().read(attempt).nodes
    if wanted.isdecimal() and wanted not in names:
        number = int(wanted)
        if numbers and number not in numbers and number >= len(names):
            raise UsageError(f"no node {number} in this attempt", f"nodes with output: {', '.join(map(str, numbers))}")
        return number
    matches = [at for at, name in enumerate(names) if wanted in (name, name.split(".")[0])]
    if not matches:
        known = f"its nodes are {hosts(names)}" if names else "node names are known once the job has started"
        hint = f"{known}; or give the node's index, from 0"
        raise UsageError(f"no node {clean(wanted)!r} in this attempt", hint)
    return None if len(names) == 1 and len(numbers) > 1 else matches[0]


TAIL_BYTES = 16 * 1024
"""Bytes read from the end of a log."""

_RANK = re.compile(r"\[rank(\d{1,7})\]:[ ]?")


def last_lines(status: RunStatus, most: int) -> list[str]:
    """The newest lines of rank 0, oldest first, with escapes removed; the batch script's if the training wrote none."""
    attempt = status.last
    if attempt is None or most <= 0:
        return []
    folder = AttemptFolder(attempt.folder)
    for path in (folder.first_log, folder.batch_log):
        try:
            newest = tail_lines(path, TAIL_BYTES, over=attempt.ended is not None)
        except OSError:
            continue
        lines = [line for text in reversed(newest) if (own := _of_rank_0(text)) for line in log_lines(own)]
        if lines:
            return lines[-most:]
    return []


def _of_rank_0(text: str) -> str:
    """The line without its rank prefix; empty for other ranks."""
    match = _RANK.match(text)
    if match is None:
        return text
    return text[match.end() :] if int(match[1]) == 0 else ""


BAR = 30
"""Width of the plain-text progress bar, in columns."""

LAST_LINES = 10
"""Number of log lines in the summary of a run that did not complete."""

Field = tuple[str, str]


def details(
    status: RunStatus,
    *,
    account: TimeAccount | None = None,
    use: Efficiency | None = None,
    hosts_of_run: Sequence[str] = (),
    colour: bool = False,
    live: bool = False,
    now: float | None = None,
) -> list[str]:
    """The details of a run, one field per line. `hosts_of_run` are lines about its hosts.

    `live`: what changes while it runs, without looking at its files.
    """
    current = time.time() if now is None else now
    source = source_text(status)
    state = painted(status.state, status.state, colour=colour) + (f", {source}" if source else "")
    lines = [_attempt(attempt, current) for attempt in status.attempts[-1 if live else 0 :]]
    step, total, drawn = status.progress.step, status.progress.total, list[str]()
    if step is not None and total:
        done = min(1.0, max(0.0, step / total))
        drawn = [f"[{'#' * int(done * BAR):-<{BAR}}] {done:.0%}"]
    successor, job = "", status.successor
    if job is not None and status.state != "RETRYING" and not status.final:  # the reason of a RETRYING run names it
        successor = f"job {clean(job.job_id)}, {clean(job.state)}: takes over if this job ends before the run does"
    fields = [
        ("state", state),
        ("why", reason_text(status)),
        *_named("warning", [clean(warning) for warning in status.warnings]),
        ("phase", startup_text(status, current)),
        ("next start", ", ".join(waiting_parts(status, current))),
        ("successor", successor),
        *_named("progress", [*drawn, ", ".join(progress_parts(status))]),
        *_named("roles", role_lines(status, current)),
        ("tunnel", "" if live else tunnel(status)),
        ("time", time_line(account) if account is not None else ""),
        *(efficiency_fields(use) if use is not None else ()),
        ("site", clean(status.site)),
        *_named("attempts" if len(lines) > 1 else "attempt", lines),
        *_named("hosts", [clean(line) for line in hosts_of_run]),
        *([] if live else [*_places(status), *_next(status)]),
    ]
    return [clean(status.run), *_aligned(fields)]


def summary(
    status: RunStatus, *, use: Efficiency | None = None, colour: bool = False, now: float | None = None
) -> list[str]:
    """How a run ended, where its output is and what to do next."""
    spent = elapsed(status.last, time.time() if now is None else now)
    state = painted(status.state, status.state, colour=colour)
    title = f"{clean(status.run)} {state}" + (f" after {duration(spent)}" if spent is not None else "")
    fields = [
        ("why", reason_text(status)),
        ("reached", ", ".join(progress_parts(status))),
        *(efficiency_fields(use) if use is not None else ()),
        *(_evidence(status) if status.state in ("FAILED", "STOPPED") else []),
        *_places(status),
        *_next(status),
    ]
    return [title, *_aligned(fields)]


def _evidence(status: RunStatus) -> list[Field]:
    """The evidence of the verdict, or the last lines of rank 0 if there is none."""
    attempt = status.last
    quotes = attempt.evidence[:LAST_LINES] if attempt is not None else ()
    if not quotes:
        return _named("last lines", [f"| {line}" for line in last_lines(status, LAST_LINES)])
    places = [f"{quote.file}:{quote.line or ''}".rstrip(":") for quote in quotes]
    return _named("evidence", [f"{clean(at)} | {clean(one.text)}" for at, one in zip(places, quotes, strict=True)])


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
    changes = []
    for name, values in attempt.overrides.by_name().items():
        option = "exclude" if name == "ledger" else name  # nodes that other runs recorded as bad
        changes += [f"--{option} {value}" for value in values]
    return ", ".join([*parts, *([f"changed: {clean(' '.join(changes))}"] if changes else [])])


def _places(status: RunStatus) -> list[Field]:
    attempt, logs = status.last, None
    if attempt is not None:
        folder = AttemptFolder(attempt.folder)
        logs = folder.logs if any(folder.logs.glob("node-*.log")) else folder.batch_log
    checkpoints, offline = status.folder / "checkpoints", status.folder / "wandb"
    # How to upload wandb's offline runs (see plan.trackers).
    upload = status.final and any(offline.glob("offline-run-*"))
    return [
        ("folder", clean(status.folder)),
        ("logs", clean(logs) if logs is not None and os.path.exists(logs) else ""),
        ("checkpoints", clean(checkpoints) if os.path.isdir(checkpoints) else ""),
        ("upload", f"wandb sync {shlex.quote(clean(offline))}/offline-run-*" if upload else ""),
    ]


def _next(status: RunStatus) -> list[Field]:
    commands = next_commands(status)
    width = max(len(command) for command, _ in commands)
    return _named("next", [f"{pad(command, width)}  {purpose}" for command, purpose in commands])


def _named(name: str, lines: list[str]) -> list[Field]:
    return [(name if at == 0 else "", line) for at, line in enumerate(lines)]


def _aligned(fields: list[Field]) -> list[str]:
    """The fields that have a value."""
    shown = [field for field in fields if field[1]]
    width = max((len(name) for name, _ in shown), default=0)
    return [f"  {pad(name, width)}  {value}" for name, value in shown]
