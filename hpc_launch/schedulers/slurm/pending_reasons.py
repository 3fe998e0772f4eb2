"""What Slurm's reasons for waiting mean for a person: which never end by themselves, and what to do about them.

Sources: Slurm's page 'Job Reason Codes', src/common/job_state_reason.c, and the two texts that slurmctld puts in
the place of a code (src/slurmctld/job_mgr.c: `job requeued in held state`, `launch failed requeued held`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RELEASE = "scontrol release {id}"
_GIVE_UP = "cancel it, mend the job file, and submit anew"


@dataclass(frozen=True)
class Advice:
    """What a reason means, and what to do."""

    reason: str
    meaning: str
    """One sentence."""
    action: str
    """What to do, with the command where there is one."""
    never: bool
    """Whether the job cannot start until a person acts."""

    def __str__(self) -> str:
        return f"{self.meaning} {self.action[0].upper()}{self.action[1:]}."


_NEVER: tuple[tuple[str, str, str], ...] = (
    ("JobHeldUser", "The job is held by its owner or an account coordinator.", f"release it: {_RELEASE}"),
    ("JobHeldAdmin", "An administrator holds the job.", "ask the cluster's support; only they can release it"),
    (
        "launch failed requeued held",
        "A node could not start the job (its prolog failed, mostly), so Slurm put it back and holds it.",
        f"when the node is mended or excluded, release it: {_RELEASE}",
    ),
    ("job requeued in held state", "The job was put back into the queue and is held.", f"release it: {_RELEASE}"),
    (
        "JobHoldMaxRequeue",
        "The job failed to start so often that Slurm holds it (MaxBatchRequeue).",
        f"find out which node fails, then release it: {_RELEASE}",
    ),
    (
        "DependencyNeverSatisfied",
        "The job waits for another job that ended otherwise than it asks for.",
        "cancel it, or drop the dependency: scontrol update jobid={id} dependency=",
    ),
    (
        "PartitionTimeLimit",
        "The time limit is longer than the partition allows.",
        "shorten it: scontrol update jobid={id} timelimit=HH:MM:SS",
    ),
    (
        "PartitionNodeLimit",
        "The job asks for more or fewer nodes than the partition allows, or than are in service.",
        "compare with: scontrol show partition. Then change the job file and submit anew",
    ),
    (
        "PartitionConfig",
        "The job asks for something that the partition is not configured to give.",
        "compare with: scontrol show partition. Then change the job file and submit anew",
    ),
    ("BadConstraints", "No node of the cluster can ever meet what the job asks for.", _GIVE_UP),
    ("InvalidAccount", "The account is not valid any more.", f"check with sacctmgr show assoc user=$USER; {_GIVE_UP}"),
    ("InvalidQOS", "The QOS is not valid any more.", f"check with sacctmgr show qos; {_GIVE_UP}"),
    ("AccountNotAllowed", "The partition does not let this account in.", f"choose another; {_GIVE_UP}"),
    ("QOSNotAllowed", "The account or the partition does not allow this QOS.", f"choose another; {_GIVE_UP}"),
    (
        "ReservationDeleted",
        "The reservation that the job asks for is gone.",
        "drop it: scontrol update jobid={id} reservation=",
    ),
    ("MaxMemPerLimit", "The job asks for more memory a CPU or node than is allowed.", _GIVE_UP),
    ("DeadLine", "The job cannot end before the deadline it was given.", _GIVE_UP),
    (
        "SPECIAL_EXIT",
        "The job ended with an exit code for which the site puts jobs back and holds them.",
        f"look at its log, then release it: {_RELEASE}",
    ),
)

_NEVER_PATTERNS: tuple[tuple[str, str, str], ...] = (
    (
        r"(Assoc|QOS)Max\w*(PerJob|PerNode)(Limit)?",
        "The job alone asks for more than the {whose} allows one job.",
        f"see the limits: sacctmgr show {{table}}; {_GIVE_UP}",
    ),
    (r"QOSMin\w+", "The job asks for less than the QOS demands of one job.", _GIVE_UP),
    (
        r"(Assoc|QOS)Grp\w*(?<!Run)Minutes(Limit)?",
        "The {whose} has used up its budget of compute time.",
        "ask for more, charge another account, or wait until the site renews it",
    ),
)

_WORTH_A_WORD: tuple[tuple[str, str, str], ...] = (
    (
        "ReqNodeNotAvail",
        "A node that the job needs is down, drained or reserved (a maintenance ahead counts).",
        "see which: sinfo -R, and scontrol show reservation. A shorter time limit may fit in before",
    ),
    ("PartitionDown", "The partition starts no jobs at the moment.", "wait, or choose another queue"),
    ("PartitionInactive", "The partition takes and starts no jobs at the moment.", "wait, or choose another queue"),
    ("BeginTime", "The job may not start yet: a begin time, or the pause of two minutes after a requeue.", "wait"),
    ("NodeDown", "A node that the job needs is down.", "wait, or see sinfo -R"),
)


def advice(reason: str | None, job_id: str = "JOBID") -> Advice | None:
    """What there is to say of a reason, as squeue, sacct or scontrol print it; None for one that is just waiting."""
    text = (reason or "").strip().strip("()")
    # scontrol prints underscores for the spaces; details may follow a comma.
    code = re.split(r"[,:(]", text, maxsplit=1)[0].strip()
    plain = code if code == "SPECIAL_EXIT" else code.replace("_", " ")
    for table, never_ends in ((_NEVER, True), (_WORTH_A_WORD, False)):
        for name, meaning, action in table:
            if plain.casefold() == name.casefold():
                return Advice(text, meaning, action.format(id=job_id), never_ends)
    for pattern, meaning, action in _NEVER_PATTERNS:
        if re.fullmatch(pattern, code):
            assoc = code.startswith("Assoc")
            words = {"whose": "account" if assoc else "QOS", "table": "assoc user=$USER" if assoc else "qos"}
            return Advice(text, meaning.format(**words), action.format(**words), never=True)
    return None


def never(reason: str | None, job_id: str = "JOBID") -> Advice | None:
    """Advice if a job that waits for this reason can never start until a person acts; None otherwise."""
    found = advice(reason, job_id)
    return found if found is not None and found.never else None


_A_PERSONS = frozenset(
    {"JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied", "job requeued in held state", "SPECIAL_EXIT"}
)
"""What somebody made so on purpose: it is for that person to undo."""

_LAUNCH = frozenset({"launch failed requeued held", "JobHoldMaxRequeue"})


def failed_to_start(reason: str | None) -> str | None:
    """The class of failures (spec.failures) of a job that waits for this reason and can never start; None otherwise."""
    found = never(reason)
    if found is None or re.search(r"Minutes(Limit)?$", found.reason):  # a budget that the site renews
        return None
    code = re.split(r"[,:(]", found.reason, maxsplit=1)[0].strip()
    names = {code.casefold(), code.replace("_", " ").casefold()}
    if names & {name.casefold() for name in _A_PERSONS}:
        return None
    return "node_failure" if names & {name.casefold() for name in _LAUNCH} else "submit_rejected"
