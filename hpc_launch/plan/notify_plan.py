"""`notify:` in the plan: what the job and its drivers send, Slurm's mail options, and what cannot be sent."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.notify import Notify
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.plan.plan_parts import Directive
from hpc_launch.plan.recorded_parts import NotifyChannels, NotifyPlan, WebhookPlan
from hpc_launch.plan.variable_names import NAME, SCRIPT_VARIABLES

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
    if NAME.match(text) and text not in SCRIPT_VARIABLES:
        return True
    hint = "write the name of a variable, such as SLACK_URL, and set it in your shell or in secrets.env (mode 0600)"
    message = "`notify.webhook` holds an address, not the name of a variable that has it"
    if ":" not in text and "/" not in text:
        message = "`notify.webhook.secret` is not a name that a variable can have here"
    draft.fault(FindingCode.INVALID_WEBHOOK, message, ("notify", "webhook", "secret"), hint)
    return False


def _check(draft: PlanDraft, asked: Notify) -> None:
    """HL552 for each event that nobody would hear of, where the user named it."""
    slurm = draft.resolved.site.scheduler.type == "slurm"
    others = asked.webhook is not None or bool(asked.command)

    def warn(key: str, message: str, hint: str) -> None:
        draft.fault(FindingCode.NOTHING_TO_SEND, message, ("notify", key), hint, "warning")

    if asked.mail is not None and not slurm:
        site = draft.resolved.site.name
        warn("mail", f"site {site} has no Slurm to send mails", "use `webhook` or `command`")
    elif asked.mail is None and not others:
        warn("events", "`notify` names no receiver", "add `mail`, `webhook` or `command`")
    elif not others:
        missing = [event for event in asked.events if event not in MAIL_TYPES]
        if missing:
            words = " and ".join(f"`{event}`" for event in missing)
            warn("events", f"Slurm's mails do not cover {words}", "add `webhook` or `command`, or remove the event")
    if "first_step" in asked.events and others and draft.resolved.job.progress.step is None:
        hint = r"add `progress: {step: 'step (\d+)'}`, as the log shows it"
        warn("events", "`first_step` needs `progress.step`", hint)
