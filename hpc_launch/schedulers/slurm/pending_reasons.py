"""Explain Slurm's pending reasons: which never clear by themselves, and what to do.

Sources: Slurm's page 'Job Reason Codes', src/common/job_state_reason.c, and the two texts that slurmctld prints
instead of a code (src/slurmctld/job_mgr.c: `job requeued in held state`, `launch failed requeued held`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RELEASE = "scontrol release {id}"
_GIVE_UP = "cancel it, fix the job file and submit again"


@dataclass(frozen=True)
class Advice:
    """The meaning of a pending reason, and what to do."""

    reason: str
    meaning: str
    """One sentence."""
    action: str
    """What to do, with the command if there is one."""
    never: bool
    """Whether the job cannot start until someone acts."""

    def __str__(self) -> str:
        return f"{self.meaning} {self.action[0].upper()}{self.action[1:]}."


_NEVER: tuple[tuple[str, str, str], ...] = (
    ("JobHeldUser", "The job is held by its owner or an account coordinator.", f"release it: {_RELEASE}"),
    ("JobHeldAdmin", "An administrator holds the job.", "ask the cluster's support; only they can release it"),
    (
        "launch failed requeued held",
        "A node failed to start the job, usually in its prolog, so Slurm requeued and held it.",
        f"once the node is repaired or excluded, release it: {_RELEASE}",
    ),
    ("job requeued in held state", "The job was requeued and is held.", f"release it: {_RELEASE}"),
    (
        "JobHoldMaxRequeue",
        "The job failed to start so often that Slurm holds it (MaxBatchRequeue).",
        f"find out which node fails, then release it: {_RELEASE}",
    ),
    (
        "DependencyNeverSatisfied",
        "The job depends on another job that did not end as required.",
        "cancel it, or drop the dependency: scontrol update jobid={id} dependency=",
    ),
    (
        "PartitionTimeLimit",
        "The time limit is longer than the partition allows.",
        "shorten it: scontrol update jobid={id} timelimit=HH:MM:SS",
    ),
    (
        "PartitionNodeLimit",
        "The job requests more or fewer nodes than the partition allows, or more than are in service.",
        "compare with `scontrol show partition`, then change the job file and submit again",
    ),
    (
        "PartitionConfig",
        "The job requests something that the partition is not configured for.",
        "compare with `scontrol show partition`, then change the job file and submit again",
    ),
    ("BadConstraints", "No node in the cluster satisfies the request.", _GIVE_UP),
    ("InvalidAccount", "The account is no longer valid.", f"check `sacctmgr show assoc user=$USER`; {_GIVE_UP}"),
    ("InvalidQOS", "The QOS is no longer valid.", f"check `sacctmgr show qos`; {_GIVE_UP}"),
    ("AccountNotAllowed", "The partition does not allow this account.", f"choose another; {_GIVE_UP}"),
    ("QOSNotAllowed", "The account or the partition does not allow this QOS.", f"choose another; {_GIVE_UP}"),
    (
        "ReservationDeleted",
        "The job's reservation no longer exists.",
        "drop it: scontrol update jobid={id} reservation=",
    ),
    ("MaxMemPerLimit", "The job requests more memory per CPU or node than allowed.", _GIVE_UP),
    ("DeadLine", "The job cannot end before its deadline.", _GIVE_UP),
    (
        "SPECIAL_EXIT",
        "The job ended with an exit code for which the site requeues and holds jobs.",
        f"check its log, then release it: {_RELEASE}",
    ),
    (
        r"(Assoc|QOS)Max\w*(PerJob|PerNode)(Limit)?",
        "The job requests more than the {whose} allows per job.",
        f"list the limits: sacctmgr show {{table}}; {_GIVE_UP}",
    ),
    (r"QOSMin\w+", "The job requests less than the QOS requires per job.", _GIVE_UP),
    (
        r"(Assoc|QOS)Grp\w*(?<!Run)Minutes(Limit)?",
        "The {whose} has used up its compute time budget.",
        "request more time, use another account, or wait until the site renews the budget",
    ),
)

_TEMPORARY: tuple[tuple[str, str, str], ...] = (
    (
        "ReqNodeNotAvail",
        "A node that the job needs is down, drained or reserved, possibly for upcoming maintenance.",
        "check `sinfo -R` and `scontrol show reservation`; a shorter time limit may let the job start earlier",
    ),
    ("PartitionDown", "The partition currently starts no jobs.", "wait, or choose another queue"),
    ("PartitionInactive", "The partition currently accepts and starts no jobs.", "wait, or choose another queue"),
    ("BeginTime", "The job waits for its begin time, or for the two minutes after a requeue.", "wait"),
    ("NodeDown", "A node that the job needs is down.", "wait, or check `sinfo -R`"),
)


def advice(reason: str | None, job_id: str = "JOBID") -> Advice | None:
    """Explain a pending reason as printed by squeue, sacct or scontrol; None for an ordinary one."""
    text = (reason or "").strip().strip("()")
    # scontrol prints underscores for spaces; details may follow a comma.
    code = re.split(r"[,:(]", text, maxsplit=1)[0].strip()
    plain = code if code == "SPECIAL_EXIT" else code.replace("_", " ")
    for never_ends, table in ((True, _NEVER), (False, _TEMPORARY)):
        for pattern, meaning, action in table:
            if any(re.fullmatch(pattern, one, re.IGNORECASE) for one in (plain, code)):
                assoc = code.startswith("Assoc")
                whose, limits = ("account", "assoc user=$USER") if assoc else ("QOS", "qos")
                return Advice(
                    text, meaning.format(whose=whose), action.format(id=job_id, table=limits, whose=whose), never_ends
                )
    return None


def never(reason: str | None, job_id: str = "JOBID") -> Advice | None:
    """Advice if a job pending for this reason can never start until someone acts; None otherwise."""
    explained = advice(reason, job_id)
    return explained if explained is not None and explained.never else None


_DELIBERATE = frozenset(
    {"JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied", "job requeued in held state", "SPECIAL_EXIT"}
)
"""Reasons that someone caused on purpose and has to undo."""

_LAUNCH_FAILURES = frozenset({"launch failed requeued held", "JobHoldMaxRequeue"})


def failed_to_start(reason: str | None) -> str | None:
    """The failure class (job/retry.py) of a job that can never start for this reason; None otherwise."""
    blocked = never(reason)
    if blocked is None or re.search(r"Minutes(Limit)?$", blocked.reason):  # a budget that the site renews
        return None
    code = re.split(r"[,:(]", blocked.reason, maxsplit=1)[0].strip()
    names = {code.casefold(), code.replace("_", " ").casefold()}
    if names & {name.casefold() for name in _DELIBERATE}:
        return None
    return "node_failure" if names & {name.casefold() for name in _LAUNCH_FAILURES} else "submit_rejected"
