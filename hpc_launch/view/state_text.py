"""The state of a run as text: source and age, progress, roles, next commands; and where its time went."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hpc_launch.job.units import counted
from hpc_launch.performance.time_account import TimeAccount
from hpc_launch.runs.records.attempt_files import RoleState
from hpc_launch.runs.status.progress_reader import Progress
from hpc_launch.runs.status.run_status import AttemptStatus, RunStatus
from hpc_launch.runs.status.startup_summary import Group
from hpc_launch.view.format_values import ago, clean, clock_time, duration, hosts, number, share, step_rate

if TYPE_CHECKING:
    from hpc_launch.performance.measured_pace import CheckpointInterval

_SOURCES = {
    "end_record": "from the job's own record",
    "squeue": "from squeue",
    "sacct": "from sacct",
    "scontrol": "from scontrol",
    "local": "from this machine",
    "ssh": "from its first host",
    "scheduler": "from the scheduler",
}

_NEXT = {
    "SUBMITTING": ("status", "cancel"),
    "PENDING": ("watch", "cancel"),
    "STUCK": ("cancel", "status"),
    "STARTING": ("watch", "logs -f"),
    "RUNNING": ("watch", "logs -f"),
    "ENDING": ("watch", "logs"),
    "RETRYING": ("watch", "cancel"),
    "COMPLETED": ("logs",),
    "FAILED": ("why", "logs", "resubmit"),
    "STOPPED": ("logs", "resubmit"),
    "CANCELLED": ("logs", "resubmit"),
    "UNKNOWN": ("status", "logs"),
}

_PURPOSES = {
    "status": "show its details",
    "why": "explain why it ended",
    "watch": "follow it live",
    "logs": "print its output",
    "logs -f": "follow its output",
    "cancel": "cancel it",
    "resubmit": "start the next attempt",
}


def source_text(status: RunStatus) -> str:
    """The source of the state and its age: `from squeue 4 s ago`."""
    source = _SOURCES.get(status.source)
    if source is None:
        return "" if status.age_s is None else f"as of {ago(status.age_s)}"
    return source if status.age_s is None else f"{source} {ago(status.age_s)}"


def reason_text(status: RunStatus) -> str:
    """The reason with escapes removed; empty if there is none."""
    return clean(status.reason) if status.reason else ""


def step_text(progress: Progress) -> str:
    """`40/200`, `40`, or '' where no step is known."""
    if progress.step is None:
        return ""
    return str(progress.step) + (f"/{progress.total}" if progress.total is not None else "")


def progress_parts(status: RunStatus) -> list[str]:
    """The known ones of `step 40/200`, `loss 2.31`, and of an active run `3.2 steps/s`, `35 s left`; or why
    the step is not known."""
    progress = status.progress
    words: list[str] = []
    if progress.step is not None:
        words.append(f"step {step_text(progress)}")
    elif progress.unmatched and status.state in ("RUNNING", "COMPLETED"):
        words.append("progress.step has matched no line" + ("" if status.final else " so far"))
    if progress.loss is not None:
        words.append(f"loss {number(progress.loss)}")
    if progress.rate and not status.final:
        words.append(step_rate(progress.rate))
    if progress.eta_s and not status.final:
        words.append(f"{duration(progress.eta_s)} left")
    return words


def startup_text(status: RunStatus, now: float) -> str:
    """How far the start is: `rendezvous: 6 of 8 nodes; n3, n7 still starting their container (4 m 10 s)`; or ''."""
    startup = status.startup
    if startup is None:
        return ""
    text = startup.head()
    if not startup.behind:
        text += _time_in(startup.groups[0], now)
    return clean(text + "".join(f"; {startup.doing(group)}{_time_in(group, now)}" for group in startup.behind))


def _time_in(group: Group, now: float) -> str:
    """` (4 m 10 s)`."""
    return f" ({duration(now - group.since)})" if group.since is not None else ""


def waiting_parts(status: RunStatus, now: float) -> list[str]:
    """Of a run that waits: the class and verdict of the attempt before, the pause, and the expected start.

    `after nccl_timeout (RETRY)`, `pause until 14:32:10 (28 s left)`, `expected to start at 14:40:00 (in 8 m 02 s)`.
    """
    if status.state not in ("RETRYING", "SUBMITTING", "PENDING", "STUCK"):
        return []
    before = status.attempts[-1:] if status.state == "RETRYING" else status.attempts[-2:-1]
    words = [
        f"after {clean(attempt.failure_class)} ({clean(attempt.verdict)})"
        for attempt in before
        if attempt.failure_class is not None and attempt.verdict not in (None, "NONE")
    ]
    pause, start = status.pause_until, status.expected_start
    if pause is not None and pause > now:
        words.append(f"pause until {clock_time(pause, now)} ({duration(pause - now)} left)")
    if start is not None and start > max(now, (pause or 0) + 1):
        words.append(f"expected to start at {clock_time(start, now)} (in {duration(start - now)})")
    return words


def states_of(status: RunStatus) -> tuple[RoleState, ...]:
    """The roles of the newest attempt; none for a job of one program."""
    return status.roles.roles if status.roles is not None else ()


def restarted(role: RoleState) -> str:
    """`restarted once`, `restarted 2 times`; '' if it was not."""
    return {0: "", 1: "restarted once"}.get(role.restarts, f"restarted {role.restarts} times")


def all_ready(status: RunStatus) -> str:
    """`all were ready 42 s after the job began, server last`; '' before, and for one role."""
    began, states = status.last.started if status.last is not None else None, status.roles
    if states is None or states.ready_at is None or began is None or len(states.roles) < 2:
        return ""
    last = max(states.roles, key=lambda role: role.since if role.first_ready is None else role.first_ready)
    return f"all were ready {duration(max(0.0, states.ready_at - began))} after the job began, {clean(last.name)} last"


def roles_line(status: RunStatus) -> str:
    """The roles that are away or were restarted, for one line; '' for none, while the run starts, and once it ended."""
    found = states_of(status) if status.startup is None and not status.final else ()
    odd = [role for role in found if role.restarts or role.state in ("waiting", "starting")]
    return "; ".join(" ".join(filter(None, (clean(role.name), role.state, restarted(role)))) for role in odd)


def role_lines(status: RunStatus, now: float) -> list[str]:
    """A line for each role, and how long it took until all were ready."""
    found = states_of(status)
    width = max((len(role.name) for role in found), default=0)
    lines = [f"{clean(role.name):<{width}}  {', '.join(_parts(status, role, now))}" for role in found]
    return [*lines, *filter(None, [all_ready(status)])]


def _parts(status: RunStatus, role: RoleState, now: float) -> Iterator[str]:
    ended, failed = role.state == "ended", status.roles.failed if status.roles is not None else None
    yield f"ended with exit code {role.exit_code}" if ended else f"{clean(role.state)} for {duration(now - role.since)}"
    if failed is not None and failed.name == role.name:
        yield "failed first"
    yield f"on {hosts(role.nodes)}"
    if role.state in ("starting", "ready") and not role.ends_job:
        yield clean(role.url)
    if role.waits_for:
        yield clean(role.waits_for)
    if role.started is not None and role.first_ready is not None:
        yield f"its start took {duration(role.first_ready - role.started)}"
    yield from filter(None, [restarted(role)])


def tunnel(status: RunStatus) -> str:
    """The command that reaches a server from another machine; '' where none is ready."""
    open_ = next((role for role in states_of(status) if role.state == "ready" and not role.ends_job), None)
    if open_ is None or status.final:
        return ""
    place = f"{open_.port}:{clean(open_.host)}:{open_.port}"
    return f"ssh -L {place} {clean(os.uname().nodename)}  reaches {clean(open_.name)} from another machine"


def elapsed(attempt: AttemptStatus | None, now: float) -> float | None:
    """Seconds that an attempt ran or has been running; None before its start and if its end is unknown."""
    if attempt is None or attempt.started is None:
        return None
    if attempt.ended is not None:
        return max(0.0, attempt.ended - attempt.started)
    running = attempt.state in ("RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING", "RESIZING", "STAGE_OUT")
    return max(0.0, now - attempt.started) if running else None


def one_line(status: RunStatus, now: float | None = None) -> str:
    """A run on one line: `running for 35 s, step 40/200, loss 2.31, 35 s left`."""
    attempt, current = status.last, time.time() if now is None else now
    spent = elapsed(attempt, current)
    head = status.state.lower()
    if attempt is not None and attempt.number > 1:
        head = f"attempt {attempt.number} {head}"
    if spent is not None:
        head += f" {'after' if status.final else 'for'} {duration(spent)}"
    if status.reason and status.state != "COMPLETED":
        head += f" ({reason_text(status)})"
    news = filter(None, (startup_text(status, current), roles_line(status)))
    words = [head, *news, *waiting_parts(status, current), *progress_parts(status)]
    if not progress_parts(status) and status.job_id is not None:
        words.append(f"job {clean(status.job_id)}")
    return ", ".join(words)


def next_commands(status: RunStatus) -> list[tuple[str, str]]:
    """(command, purpose) for a run in this state."""
    run = shlex.quote(clean(status.run))
    if status.folder_missing:
        return [("hpc-launch list", "list the runs whose folders exist")]
    commands = []
    for verb in _NEXT.get(status.state, ("status",)):
        word, *options = verb.split()
        commands.append((" ".join(["hpc-launch", word, run, *options]), _PURPOSES[verb]))
    return commands


def detach_message(runs: list[str]) -> str:
    """The message after Ctrl-C stopped following."""
    names = " ".join(shlex.quote(clean(run)) for run in runs)
    jobs = "the job keeps running" if len(runs) == 1 else "the jobs keep running"
    return f"{jobs}; follow again with: hpc-launch watch {names}"


SMALL = 0.001
"""Categories with a smaller share of the wall time are not listed."""


def time_json(account: TimeAccount) -> dict[str, Any]:
    """`time` and `starting_phases` of `status --json` (docs/reference/json.md), in seconds."""
    return {
        "time": {category: round(seconds, 3) for category, seconds in account.by_category().items()},
        "starting_phases": {phase: round(seconds, 3) for phase, seconds in account.phases().items()},
    }


def time_line(account: TimeAccount) -> str:
    """`training 92.1% of 3 h 05 m; starting 2 m 05 s, repeated 40 s; queued 4 m 10 s`; '' before a job ran."""
    seconds = account.by_category()
    queued, goodput = seconds.pop("queued"), account.goodput
    if goodput is None:
        return ""
    used = account.wall_s - queued
    lost = sorted(((time, name) for name, time in seconds.items() if name != "training"), reverse=True)
    parts = [f"{name} {duration(time)}" for time, name in lost if time >= max(1.0, SMALL * used)]
    text = f"training {share(goodput)} of {duration(used)}"
    text += f"; {', '.join(parts)}" if parts else ""
    return text + (f"; queued {duration(queued)}" if queued >= 1 else "")


def phases_text(account: TimeAccount) -> str:
    """The phases of all starts, longest first: `imports 40 s, first step 12 s`; '' where they are not known."""
    phases = sorted(((seconds, phase) for phase, seconds in account.phases().items() if seconds >= 1), reverse=True)
    return ", ".join(f"{phase.replace('_', ' ')} {duration(seconds)}" for seconds, phase in phases)


def interval_text(interval: CheckpointInterval) -> str:
    """How often the run should save, with the numbers that this follows from."""
    seen, failures, every = interval.exposure, interval.exposure.failures, interval.every_s
    saves = f"one takes {_precise(interval.cost_s)}"
    if every is not None:
        saves += f", every {_precise(every)}, loses {share(interval.lost(every))}"
    best = f"every {_precise(interval.best_s)} would lose the least, {share(interval.lost(interval.best_s))}"
    hours = number(seen.node_s / 3600)
    known = f"{counted(failures, 'failure')} in {hours} node hours of this site's runs"
    size = counted(interval.nodes, "node")
    return f"{saves}; {best}; {known}: one in {_precise(interval.mtbf_s)} on {size}"


def interval_json(interval: CheckpointInterval | None) -> dict[str, Any] | None:
    """`checkpoint_interval` of `why --json` (docs/reference/json.md); None where it is not known."""
    if interval is None:
        return None
    return {
        **{name: getattr(interval, name) for name in ("cost_s", "checkpoints", "every_s", "mtbf_s", "best_s")},
        "failures": interval.exposure.failures,
        "node_hours": interval.exposure.node_s / 3600,
        "lost": interval.lost(interval.every_s) if interval.every_s is not None else None,
        "best_lost": interval.lost(interval.best_s),
    }


def _precise(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{number(seconds)} s"
