"""What a driver needs about retries and messages, recorded with the plan so that nothing is detected again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.job.job import JobSpec, Notify
from hpc_launch.job.job_file import override_layer
from hpc_launch.job.reader import check
from hpc_launch.job.retry import FAILURE_CLASSES
from hpc_launch.job.type_hints import nearest
from hpc_launch.job.units import format_time
from hpc_launch.plan.environment import NAME, is_script_variable
from hpc_launch.plan.launch_plan import Directive
from hpc_launch.plan.plan_draft import JobSize, PlanDraft
from hpc_launch.plan.recorded_parts import BatchPlan, NotifyChannels, NotifyPlan, RetryPlan, WebhookPlan

NAMED = (
    ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size"),
    ("micro_batch", "gradient_accumulation", "global_batch"),
    ("micro_batch", "accumulation", "global_batch"),
    ("per_device_train_batch_size", "gradient_accumulation_steps", None),
)
"""Arguments that are called so in many trainings: micro batch, accumulation, and the global batch from which the second
is derived. The last row is Transformers' (TrainingArguments), where an accumulation that is left out is 1."""

SENTINEL_S = 600
"""Time limit of a sentinel job in seconds, if its queue allows it."""

SUCCESSOR_S = 3600
"""A shorter job is not worth another one that waits for it."""


def retry_plan(draft: PlanDraft, size: JobSize) -> RetryPlan:
    """The retry plan, with a finding for each unknown name in it."""
    resolved = draft.resolved
    job = resolved.job
    _check_classes(draft)
    _check_steps(draft)
    _check_continuation(draft, size)
    rows = [row for row in size.queue.limits if row.time is not None]
    most_nodes = max((_last(row.nodes) for row in size.queue.limits), default=None)
    return RetryPlan(
        retry=job.retry,
        batch=_batch(draft),
        memory=size.memory,
        node_memory=size.node_class.memory,
        time_s=size.time_s,
        most_time_s=max((row.time for row in rows if row.time is not None), default=None),
        nodes=None if job.elastic else job.max_nodes,
        least_nodes=job.min_nodes,
        max_nodes=min(filter(None, (most_nodes, size.queue.size)), default=None),
        site_hosts=resolved.site_hosts,
        queue=size.queue_name,
        partition=size.queue.partition,
        exclude=tuple(dict.fromkeys([*job.exclude, *draft.resolved.site.bad_nodes.nodes])),
        listed=resolved.listed_nodes,
        ledger=resolved.names.get("paths.ledger"),
        sentinel=_sentinel(draft),
        successor=_successor(draft, size),
    )


def _check_continuation(draft: PlanDraft, size: JobSize) -> None:
    """Warn of a long job that stops at its time limit, since nothing shows how far it got or what it saved."""
    job = draft.resolved.job
    shown = job.checkpoint.dir is not None or job.progress.step is not None or "time_limit" in job.retry.on
    if shown or job.time is None or job.time < SUCCESSOR_S or job.retry.max_attempts == 1:
        return
    limit = format_time(job.time)
    message = f"a training that needs more than {limit} stops there: the job names neither checkpoints nor steps"
    hint = "add `checkpoint:`, so that the next attempt continues from the last one, or at least `progress:`"
    draft.fault_at(FindingCode.NOTHING_TO_CONTINUE_FROM, message, size.time_origin.place, hint, "warning")


def _last(nodes: str) -> int:
    """The upper end of a range such as `1-91`; unlimited for `92-`."""
    first, dash, last = nodes.partition("-")
    return int(last) if last else 10**6 if dash else int(first)


def _sentinel(draft: PlanDraft) -> tuple[str, ...] | None:
    """Options for the sentinel job, in the queue named by the profile."""
    site, account = draft.resolved.site, draft.resolved.job.account
    if site.scheduler.sentinel is None or site.scheduler.type != "slurm":
        return None
    queue = site.queues.get(site.scheduler.sentinel)
    if queue is None:
        known = ", ".join(site.queues)
        message = f"site {site.name} has no queue `{site.scheduler.sentinel}` for sentinel jobs"
        draft.site_fault(FindingCode.UNKNOWN_SENTINEL_QUEUE, message, ("scheduler", "sentinel"), f"use one of: {known}")
        return None
    limit = min((row.time for row in queue.limits if row.time is not None), default=SENTINEL_S)
    time = format_time(min(limit, SENTINEL_S))
    named = (("partition", queue.partition), ("qos", queue.qos), ("account", account), ("time", time))
    return tuple(f"--{option}={value}" for option, value in named if value is not None)


def _successor(draft: PlanDraft, size: JobSize) -> bool:
    """Whether the run keeps its next job in the queue, with a finding where a job asks for what cannot be."""
    retry, site = draft.resolved.job.retry, draft.resolved.site
    if retry.successor == "off":
        return False
    message = None
    if site.scheduler.type != "slurm":
        message = "a successor job needs Slurm"
    elif retry.max_attempts == 1:
        message = "no successor job: `max_attempts: 1` allows no other attempt"
    elif not site.scheduler.successor:
        message = f"site {site.name} allows no successor jobs"
    if draft.resolved.job.sweep is not None:
        message = "the points of a sweep have no successor jobs"
    if retry.successor == "auto":
        return message is None and size.time_s is not None and size.time_s >= SUCCESSOR_S
    if message is not None:
        draft.fault(FindingCode.SUCCESSOR_NOT_POSSIBLE, message, ("retry", "successor"), "remove `successor: on`")
    return True


def _number(draft: PlanDraft, key: str | None) -> int | None:
    """The integer of the job file at a dotted key."""
    value: Any = draft.resolved.merged.data
    for part in (key or "").split(".", 1 if (key or "").startswith("args.") else -1):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _batch(draft: PlanDraft) -> BatchPlan | None:
    """The batch of the job file: at the keys in `retry.batch`, otherwise at the usual names."""
    asked = draft.resolved.job.retry.batch
    if asked is not None:
        micro, steps = _number(draft, asked.micro), _number(draft, asked.accumulation)
        for key, value, wanted in (("micro", micro, asked.micro), ("accumulation", steps, asked.accumulation)):
            if wanted is not None and value is None:
                message = f"the job has no integer `{wanted}`"
                hint = "name a key of the job file, such as args.batch-size"
                draft.fault(FindingCode.INVALID_RETRY_BATCH, message, ("retry", "batch", key), hint)
        return BatchPlan(asked.micro, micro, asked.accumulation, steps or 1) if micro is not None else None
    for micro_key, steps_key, derived in _candidates(draft):
        micro, steps = _number(draft, micro_key), _number(draft, steps_key)
        if micro is None:
            continue
        if derived is not None and _number(draft, derived) is not None and steps is None:
            return BatchPlan(micro_key, micro)
        if steps is not None or derived is None:
            return BatchPlan(micro_key, micro, steps_key, steps or 1)
    return None


def _candidates(draft: PlanDraft) -> Iterator[tuple[str, str | None, str | None]]:
    """Candidate keys: micro batch, accumulation, and the global batch that replaces the accumulation."""
    job = draft.resolved.job
    if job.strategy.micro_batch is not None:
        derived = "strategy.global_batch" if job.strategy.global_batch is not None else None
        yield "strategy.micro_batch", "strategy.gradient_accumulation", derived
    if job.parallel is not None:
        yield "parallel.micro_batch", None, "parallel.global_batch"
    args = job.args if isinstance(job.args, dict) else {}
    spelt = {key.lstrip("-").replace("-", "_"): key for key in args}
    for micro, steps, derived in NAMED:
        if micro in spelt:
            own = spelt.get(steps, steps if "_" in spelt[micro] else steps.replace("_", "-"))
            whole = f"args.{spelt.get(derived, derived)}" if derived is not None else None
            yield f"args.{spelt[micro]}", f"args.{own}", whole


def _check_classes(draft: PlanDraft) -> None:
    retry = draft.resolved.job.retry
    for key, names in (("on", retry.on), ("budgets", retry.budgets)):
        for name in names:
            if name not in FAILURE_CLASSES:
                near = nearest(name, list(FAILURE_CLASSES))
                hint = f"did you mean `{near}`?" if near else "`hpc-launch docs failures` lists all classes"
                message, path = f"unknown failure class `{name}`", ("retry", key, name)
                draft.fault(FindingCode.UNKNOWN_FAILURE_CLASS, message, path, hint)


def _check_steps(draft: PlanDraft) -> None:
    """Refuse changes that the job file could not contain now, not in an unattended retry."""
    for name, reaction in draft.resolved.job.retry.on.items():
        for at, step in enumerate(reaction.steps):
            path, site = ("retry", "on", name, "steps", at), draft.resolved.site
            if step.queue is not None and step.queue not in site.queues:
                message, hint = f"site {site.name} has no queue `{step.queue}`", f"use one of: {', '.join(site.queues)}"
                draft.fault(FindingCode.RETRY_STEP_IMPOSSIBLE, message, path, hint)
            if step.change == "half_batch" and _batch(draft) is None:
                hint = "name the arguments that set it: `retry.batch: {micro: args.NAME, accumulation: args.NAME}`"
                message = "`half_batch` needs the batch size of the job, which is unknown"
                draft.fault(FindingCode.RETRY_STEP_IMPOSSIBLE, message, path, hint)
            for key, value in step.set.items():
                faults: list[Finding] = []
                layer = override_layer([f"{key}={json.dumps(value)}"], faults)
                for fault in [*faults, *check(layer, JobSpec)]:
                    message = f"the step cannot set `{key}`: {fault.message}"
                    draft.fault(FindingCode.RETRY_STEP_IMPOSSIBLE, message, path, fault.hint)


MAIL_TYPES = {"start": "BEGIN", "end": "END", "stop": "FAIL"}
"""Slurm's mails, which are about single jobs (sbatch(1), --mail-type). Nothing in Slurm sees steps."""


def notify_plan(draft: PlanDraft) -> NotifyPlan | None:
    """What the job and its drivers send; None where only Slurm sends mails, or nobody anything."""
    asked = draft.resolved.job.notify
    if asked is None:
        return None
    _check(draft, asked)
    webhook = None
    if asked.webhook is not None and _is_name(draft, asked.webhook.secret):
        webhook = WebhookPlan(asked.webhook.secret, asked.webhook.format)
    if webhook is None and not asked.command:
        return None
    channels = NotifyChannels(webhook, tuple(asked.command))
    return NotifyPlan(asked.wanted, asked.no_progress, asked.each_point, channels)


def mail_options(draft: PlanDraft) -> Iterator[Directive]:
    """Slurm's mail options."""
    asked = draft.resolved.job.notify
    if asked is None or asked.mail is None:
        return
    kinds = [kind for event, kind in MAIL_TYPES.items() if event in asked.wanted]
    if kinds:
        yield Directive("mail-user", asked.mail, draft.resolved.origin("notify", "mail"))
        yield Directive("mail-type", ",".join(kinds), draft.resolved.origin("notify", "events"))


def _is_name(draft: PlanDraft, text: str) -> bool:
    """Whether a text names a variable; HL551 if not, without the text: it may be the address."""
    if NAME.match(text) and not is_script_variable(text):
        return True
    hint = "write the name of a variable, such as SLACK_URL, and set it in your shell or in secrets.env (mode 0600)"
    message = "`notify.webhook` must be the name of a variable that holds the address"
    draft.fault(FindingCode.INVALID_WEBHOOK, message, ("notify", "webhook", "secret"), hint)
    return False


def _check(draft: PlanDraft, asked: Notify) -> None:
    """HL552 for each event that nobody would hear of, where the user named it."""
    slurm = draft.resolved.site.scheduler.type == "slurm"
    others = asked.webhook is not None or bool(asked.command)
    mailed = MAIL_TYPES if asked.mail is not None and slurm else {}

    def warn(key: str, message: str, hint: str) -> None:
        draft.fault(FindingCode.NOTHING_TO_SEND, message, ("notify", key), hint, "warning")

    if asked.mail is not None and not slurm:
        warn("mail", f"site {draft.resolved.site.name} has no Slurm to send mails", "use `webhook` or `command`")
    elif not others and (not mailed or any(event not in mailed for event in asked.events)):
        words = " and ".join(f"`{event}`" for event in asked.events if event not in mailed)
        warn("events", f"no receiver gets {words or 'the events'}", "add `webhook` or `command`, or remove the event")
    if "first_step" in asked.events and others and draft.resolved.job.progress.step is None:
        hint = r"add `progress: {step: 'step (\d+)'}`, as the log shows it"
        warn("events", "`first_step` needs `progress.step`", hint)
