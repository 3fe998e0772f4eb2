"""Levels of `doctor` from the login node: the job file, limits and reservations of the queue, hosts, the start,
and a test message to the receivers of `notify:`."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, to_builtins

from hpc_launch.agent.check_host import writable
from hpc_launch.base.errors import SubmitRefused, Unreachable
from hpc_launch.job.job_file import GivenJob, JobSource
from hpc_launch.job.units import counted, format_time
from hpc_launch.plan.job_size import job_size
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.preflight.short_run import Level, own_job
from hpc_launch.preflight.software import software_levels
from hpc_launch.prepare.attempts import start_estimate
from hpc_launch.prepare.find_secrets import find_secrets, notify_secrets
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.retry.notifications import NOTIFY, WAIT_S
from hpc_launch.schedulers.scheduler import Limit, QueueLimits, Reservation, Reservations, Scheduler
from hpc_launch.schedulers.ssh.ssh_hosts import host_problems

GIB = 2**30
LITTLE = GIB
"""Free space for run folders that is too little for the logs of a long run."""


def job_level(prepared: PreparedJob) -> Level:
    """The job file, its site and its files. A job with errors never gets here: `prepare_job` refuses it."""
    plan = prepared.plan
    lines = [f"{plan.name} fits site {plan.site}: {counted(plan.nodes, 'node')} {plan.shape}"]
    lines += [f"warning: {finding.message}" for finding in prepared.warnings]
    folder = Path(plan.runs_folder)
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    disk = os.statvfs(existing)
    free, inodes = disk.f_bavail * disk.f_frsize, disk.f_favail
    lines.append(f"{free / GIB:.1f} GiB free for run folders in {existing}")
    full = free < LITTLE or (disk.f_files and inodes < 1000)
    written = writable(str(existing))  # a used-up quota shows only here
    if not written["ok"]:
        lines.append(str(written["text"]))
    return Level("job", "failed" if full or not written["ok"] else "ok", tuple(lines))


def static_levels(
    job: JobSource, prepared: PreparedJob, scheduler: Scheduler, site: str | None, sets: Sequence[str]
) -> Iterator[Level]:
    """What can be checked without starting a job."""
    yield job_level(prepared)
    size = job_size(ValueFiller(prepared.loaded.resolved, []))
    node = size.node_class if size is not None else None
    yield from software_levels(prepared, job, site, sets, node.arch if node is not None else None)
    yield from filter(None, [limits_level(prepared.plan, scheduler, node.gpu_type if node is not None else None)])
    yield from filter(None, [reservations_level(prepared.plan, scheduler)])
    if prepared.plan.hosts:
        yield hosts_level(prepared.plan)
    yield queue_level(prepared, scheduler)


def queue_level(prepared: PreparedJob, scheduler: Scheduler) -> Level:
    """When the job would start, and what the jobs in its queue wait for."""
    lines = []
    try:
        lines.append(start_estimate(prepared, scheduler))
    except SubmitRefused as error:
        return Level("queue", "failed", (str(error),))
    except Unreachable as error:
        return Level("queue", "not checked", (str(error),))
    partition = prepared.plan.option("partition")
    reasons = scheduler.pending_reasons(partition)
    if reasons:
        parts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))
        total = sum(reasons.values())
        lines.append(f"{counted(total, 'job waits', 'jobs wait')}{f' in {partition}' if partition else ''}: {parts}")
    return Level("queue", "ok", tuple(lines))


MOST_LINES = 5


def limits_level(plan: LaunchPlan, scheduler: Scheduler, gpu_type: str | None = None) -> Level | None:
    """The limits of the account, the QOS and the partition against what the job asks for; None without limits."""
    try:
        found = scheduler.limits(plan.option("account"), plan.option("partition"), plan.option("qos"))
    except Unreachable as error:
        return Level("limits", "not checked", (str(error),))
    return judge_limits(found, wanted(plan, gpu_type), plan.fewest_nodes) if found is not None else None


def wanted(plan: LaunchPlan, gpu_type: str | None = None) -> dict[str, int]:
    """What the job needs at least, on all nodes, by Slurm's names of resources; `wall` in seconds."""
    gpus = plan.fewest_nodes * plan.gpus_per_node
    result = {"node": plan.fewest_nodes, "gres/gpu": gpus}
    if gpu_type:
        result[f"gres/gpu:{gpu_type.lower()}"] = gpus
    if plan.cpus_per_node is not None:
        result["cpu"] = plan.fewest_nodes * plan.cpus_per_node
    if plan.time_limit_s is not None:
        result["wall"] = plan.time_limit_s
    return result


def judge_limits(found: QueueLimits, asked: Mapping[str, int], nodes: int) -> Level:
    """Compare the limits with what the job asks for."""
    never, lines = [*found.problems], [*found.notes]
    compared = [limit for limit in found.limits if limit.resource in asked or limit.used is not None]
    for limit in compared:
        if limit.used is not None:
            if limit.used >= limit.amount and limit.resource == "submitted":
                never.append(f"{_shown(limit)}; you have {limit.used}")
            elif limit.used >= limit.amount:
                lines.append(f"warning: the job waits until one of your {limit.used} jobs ends: {_shown(limit)}")
            continue
        amount = -(-asked[limit.resource] // (max(nodes, 1) if limit.scope == "node" else 1))
        if amount < limit.amount if limit.least else amount > limit.amount:
            never.append(f"{_shown(limit)}; the job asks for {_amount(limit, amount)}")
    others = [_shown(limit) for limit in found.limits if limit not in compared]
    lines += [f"not checked: {one}" for one in (*found.not_checked, *others)]
    if never:
        return Level("limits", "failed", (*never, *lines))
    owners = ", ".join(dict.fromkeys(limit.owner for limit in compared))
    passed = f"the job is within {len(compared)} limits of {owners}" if compared else "no limits"
    return Level("limits", "not checked" if found.not_checked or others else "ok", (passed, *lines))


def _shown(limit: Limit) -> str:
    return f"{limit.owner}: {limit.name} is {limit.resource}={_amount(limit, limit.amount)} per {limit.scope}"


def _amount(limit: Limit, amount: int) -> str:
    return format_time(amount) if limit.resource == "wall" else str(amount)


def reservations_level(plan: LaunchPlan, scheduler: Scheduler) -> Level | None:
    """Reservations of the partition's nodes that begin before the job would end, and the job's own reservation; None
    where the scheduler has no such thing."""
    try:
        found = scheduler.reservations(plan.option("partition"))
    except Unreachable as error:
        return Level("reservations", "not checked", (str(error),))
    if found is None:
        return None
    return judge_reservations(found, plan.fewest_nodes, plan.time_limit_s, plan.option("reservation"), time.time())


def judge_reservations(found: Reservations, nodes: int, limit_s: int | None, named: str | None, now: float) -> Level:
    """Which reservations delay a job of this size. `named`: the reservation that the job asks for."""
    if named is not None:
        state, text = _own_reservation(found, nodes, limit_s, named, now)
        return Level("reservations", state, (text,))
    if not found.nodes or found.unread:
        unread = f"the times of {', '.join(found.unread[:MOST_LINES])} are not understood"
        reason = unread if found.nodes else "sinfo lists no nodes of the partition"
        return Level("reservations", "not checked", (reason,))
    blocking = [
        one
        for one in found.reservations
        if one.end > now and one.nodes & found.nodes and (limit_s is None or one.start < now + limit_s)
    ]
    left = found.nodes.difference(*(one.nodes for one in blocking))
    if len(left) >= nodes:
        none = "no reservation of the partition's nodes within the job's time limit"
        text = f"reservations leave {len(left)} of {len(found.nodes)} nodes to the job" if blocking else none
        return Level("reservations", "ok", (text,))
    lines = list(_delays(sorted(blocking, key=lambda one: (one.start, one.name)), found.nodes, now))
    more = [f"and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    return Level("reservations", "ok", (*lines[:MOST_LINES], *more))


def _delays(blocking: Sequence[Reservation], nodes: frozenset[str], now: float) -> Iterator[str]:
    for one in blocking:
        flags = f" ({','.join(one.flags[:3])})" if one.flags else ""
        words = (
            f"warning: reservation {one.name}{flags} has {len(one.nodes & nodes)} of {len(nodes)} nodes from "
            f"{_date(one.start)} to {_date(one.end)}; the job may have to wait until it ends"
        )
        # Slurm plans in minutes.
        room = int(one.start - now) // 60 * 60
        yield f"{words}, unless `time` is at most {format_time(room)}" if room > 0 else words


def _own_reservation(
    found: Reservations, nodes: int, limit_s: int | None, named: str, now: float
) -> tuple[Literal["ok", "failed", "not checked"], str]:
    if "," in named:
        return "not checked", f"the job may use any of {named}"
    mine = next((one for one in found.reservations if one.name == named), None)
    if mine is None:
        return "failed", f"no reservation {named}"
    if mine.end <= now:
        return "failed", f"reservation {named} ended at {_date(mine.end)}"
    if len(mine.nodes) < nodes:
        return "failed", f"reservation {named} has {len(mine.nodes)} nodes; the job asks for {nodes}"
    if limit_s is not None and max(mine.start, now) + limit_s > mine.end and "FLEX" not in mine.flags:
        return "failed", f"reservation {named} ends at {_date(mine.end)}; the job asks for {format_time(limit_s)}"
    return "ok", f"reservation {named} from {_date(mine.start)} to {_date(mine.end)}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def job_for_hosts(count: int) -> GivenJob:
    """A job that only lets the hosts be checked; their relative paths start in the current folder."""
    job = {"name": "doctor", "nodes": count, "launcher": "none", "command": ["true"], "code": "off"}
    return own_job(job, os.getcwd())


def hosts_level(plan: LaunchPlan) -> Level:
    """Each host that cannot be reached from the first one, with the missing step."""
    names = [host.name for host in (*plan.hosts, *plan.spare_hosts)]
    try:
        problems = host_problems(names)
    except SubmitRefused as error:
        return Level("hosts", "failed", (str(error),))
    several = "host" if len(names) == 1 else "hosts"
    lines = [] if problems else [f"{names[0]} reaches {len(names)} {several} over ssh"]
    for one in problems:
        lines += [one.message, *([f"hint: {one.hint}"] if one.hint else [])]
    values = {"problems": [to_builtins(one) for one in problems]}
    return Level("hosts", "failed" if problems else "ok", tuple(lines), values=values)


class SentTest(Struct, frozen=True):
    """What became of a test message."""

    channel: str
    state: str
    """`sent`, `failed` or `unknown`."""
    why: str


def send_test(plan: LaunchPlan) -> list[SentTest]:
    """Send a test message to the webhook and the command of a job, and wait. Raises Refused for a missing secret."""
    notify = plan.notify
    if notify is None:
        return []
    secrets = find_secrets(notify_secrets(notify))
    channels = {name: value for name, value in to_builtins(notify)["channels"].items() if value}
    event = {"event": "test", "run": plan.name, "site": plan.site, "time": time.time(), "channels": channels}
    done = subprocess.run(
        [*NOTIFY, "test"],
        input=json.dumps(event),
        stdout=subprocess.PIPE,
        env={**os.environ, **secrets},
        text=True,
        check=True,
        timeout=len(channels) * 2 * WAIT_S,
    )
    return [SentTest(name, one["state"], one["why"]) for name, one in json.loads(done.stdout).items()]
