"""What Slurm's reasons mean: why a job is pending or was refused, whether that passes by itself, and what to do.

Sources: Slurm's page 'Job Reason Codes', src/common/job_state_reason.c, the two texts that slurmctld prints instead of
a code (src/slurmctld/job_mgr.c: `job requeued in held state`, `launch failed requeued held`), and the messages of
src/common/slurm_errno.c. sbatch prints the code of a limit in a line before the message of the refusal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from hpc_launch.schedulers.slurm.run_command import NOT_HERE

Kind = Literal["passes", "person", "held", "launch", "budget"]
"""Who ends it: other jobs or an administrator, sooner or later (`passes`); only a person, and until then the job is in
the way (`person`); the one who holds the job (`held`); nobody, because a node could not start it (`launch`); the site,
which renews a budget (`budget`)."""

_RELEASE = "scontrol release {id}"
_GIVE_UP = "cancel it, fix the job file and submit again"
_SUPPORT = "contact the site's support: clocks or munge keys differ between this host and slurmctld"
_NODES = "request what the partition's nodes have: sinfo -o '%P %D %c %m %G'"


@dataclass(frozen=True)
class _Row:
    kind: Kind
    codes: str
    """A regular expression for the whole reason code; empty for what sbatch says only."""
    says: str
    """A regular expression for sbatch's message, in lower case; empty for a reason of pending jobs only."""
    meaning: str
    """One sentence."""
    action: str


_TABLE: tuple[_Row, ...] = (
    _Row(
        "held", "JobHeldUser", "", "The job is held by its owner or an account coordinator.", f"release it: {_RELEASE}"
    ),
    _Row("held", "JobHeldAdmin", "", "An administrator holds the job.", "ask the cluster's support to release it"),
    _Row(
        "launch",
        "launch failed requeued held",
        "",
        "A node failed to start the job, usually in its prolog, so Slurm requeued and held it.",
        f"once the node is repaired or excluded, release it: {_RELEASE}",
    ),
    _Row("held", "job requeued in held state", "", "The job was requeued and is held.", f"release it: {_RELEASE}"),
    _Row(
        "launch",
        "JobHoldMaxRequeue",
        "",
        "The job failed to start so often that Slurm holds it (MaxBatchRequeue).",
        f"find out which node fails, then release it: {_RELEASE}",
    ),
    _Row(
        "held",
        "SPECIAL_EXIT",
        "",
        "The job ended with an exit code for which the site requeues and holds jobs.",
        f"check its log, then release it: {_RELEASE}",
    ),
    _Row(
        "person",
        "DependencyNeverSatisfied",
        "dependency problem",
        "The job depends on another job that did not end as required, or that is unknown.",
        "drop the dependency: scontrol update jobid={id} dependency=",
    ),
    _Row(
        "person",
        "PartitionTimeLimit",
        "requested time limit",
        "The time limit is longer than the partition allows.",
        "list the limits: sinfo -o '%P %l'; shorten it: scontrol update jobid={id} timelimit=HH:MM:SS",
    ),
    _Row(
        "person",
        "PartitionNodeLimit",
        "node count specification",
        "The job requests more or fewer nodes than the partition allows, or more than are in service.",
        "compare with `scontrol show partition`",
    ),
    _Row(
        "person",
        "PartitionConfig",
        "",
        "The job requests something that the partition is not configured for.",
        "compare with `scontrol show partition`",
    ),
    _Row(
        "person",
        "BadConstraints",
        "node configuration is not available|memory specification|more processors",
        "No node in the cluster satisfies the request.",
        _NODES,
    ),
    _Row(
        "person",
        "InvalidAccount",
        "invalid account|account.*not permitted",
        "The account is not valid, or not here.",
        "list your accounts: sacctmgr show assoc user=$USER format=account,partition,qos",
    ),
    _Row(
        "person",
        "InvalidQOS|QOSNotAllowed",
        "invalid qos",
        "The QOS is not valid, or not allowed with this account and partition.",
        "list the QOS you may use: sacctmgr show assoc user=$USER format=account,qos",
    ),
    _Row(
        "person",
        "AccountNotAllowed",
        "group not permitted",
        "The partition does not allow this account or group.",
        "choose a partition open to your groups and accounts; list them: sinfo -s",
    ),
    _Row(
        "person",
        "ReservationDeleted",
        "reservation is invalid|denied to requested reservation",
        "The reservation does not exist, or not for you.",
        "list the reservations: scontrol show reservation; drop it: scontrol update jobid={id} reservation=",
    ),
    _Row("person", "MaxMemPerLimit", "", "The job requests more memory per CPU or node than allowed.", _NODES),
    _Row("person", "DeadLine", "", "The job cannot end before its deadline.", "request less time, or a later deadline"),
    _Row(
        "person",
        r"(Assoc|QOS)Max\w*(PerJob|PerNode)(Limit)?",
        "",
        "The job requests more than the {whose} allows per job.",
        "list the limits: sacctmgr show {table}",
    ),
    _Row(
        "person",
        r"QOSMin\w+",
        "",
        "The job requests less than the QOS requires per job.",
        "list them: sacctmgr show qos",
    ),
    _Row(
        "budget",
        r"(Assoc|QOS)Grp\w*(?<!Run)Minutes(Limit)?",
        "",
        "The {whose} has used up its compute time budget.",
        "request more time, use another account, or wait until the site renews the budget",
    ),
    _Row(
        "passes",
        r"(Assoc|QOS)?(Max|Grp)Submit\w*",
        "",
        "The {whose} allows no more jobs in the queue until others have left it.",
        "wait until jobs have ended, or cancel some; list the limits: sacctmgr show {table}",
    ),
    _Row(
        "passes",
        "PartitionDown|PartitionInactive",
        "required partition not available|partition configuration not available now",
        "The partition takes or starts no jobs at present.",
        "wait, or choose another queue; its state: sinfo -s",
    ),
    _Row(
        "passes",
        "ReqNodeNotAvail|Reservation|Resv\\w+",
        "reservation (not usable now|is in use)|maintenance reservation",
        "A node that the job needs is down, drained or reserved, possibly for upcoming maintenance.",
        "check `sinfo -R` and `scontrol show reservation`; a shorter time limit may let the job start earlier",
    ),
    _Row(
        "passes",
        "NodeDown",
        "nodes are busy",
        "A node that the job needs is down or busy.",
        "wait, or check `sinfo -R`",
    ),
    _Row(
        "passes",
        "",
        r"(re)?try (it )?again|try later|rate limit|queue full|temporarily",
        "Slurm does not take the job at present.",
        "wait; it passes by itself",
    ),
    _Row(
        "passes",
        "",
        "configuration source|dns.srv|fetch.*config|cannot run sbatch",
        "The controller was not reached from this host.",
        NOT_HERE,
    ),
)

_REFUSED_ONLY: tuple[tuple[str, str], ...] = (
    ("invalid partition", "list the partitions: sinfo -s"),
    (r"generic resource|\bgres\b", "list the cluster's GPU names: sinfo -o '%P %G'"),
    ("invalid feature", "list the nodes' features: sinfo -o '%P %f'"),
    ("reservation", "list the reservations: scontrol show reservation"),
    ("(unrecognized|invalid) option", "list the options of this Slurm version: sbatch --help"),
    ("authentication credential", _SUPPORT),
    ("unable to open file", "put the script on a file system that this host can read"),
    ("access/permission denied", "submit on another host, or choose another queue: `scontrol show partition`"),
)
"""Hints for messages of sbatch that no reason code has; only a person can change these."""

_POLICY = "accounting/qos policy"
"""The message for all limits of accounts and QOS. A line before it has the code of the limit (since 20.11)."""
_POLICY_ROW = _Row(
    "passes",
    "",
    _POLICY,
    "A limit of the account or QOS is reached.",
    "wait until jobs have ended, or request fewer nodes or less time; list your limits: sacctmgr show assoc user=$USER",
)


@dataclass(frozen=True)
class Advice:
    """The meaning of a reason, and what to do."""

    reason: str
    meaning: str
    """One sentence."""
    action: str
    """What to do, with the command if there is one."""
    kind: Kind

    @property
    def never(self) -> bool:
        """Whether the job cannot start until someone acts."""
        return self.kind != "passes"

    def __str__(self) -> str:
        return f"{self.meaning} {self.action[0].upper()}{self.action[1:]}."


def advice(reason: str | None, job_id: str = "JOBID") -> Advice | None:
    """Explain a pending reason as printed by squeue, sacct or scontrol; None for an ordinary one."""
    text = (reason or "").strip().strip("()")
    # scontrol prints underscores for spaces; details may follow a comma.
    code = re.split(r"[,:(]", text, maxsplit=1)[0].strip()
    found = _by_code(code)
    if found is None:
        return None
    explained = _explained(found, text, code, job_id)
    if found.kind != "person" or "{id}" in found.action:
        return explained
    return replace(explained, action=f"{explained.action}; {_GIVE_UP}")


def refusal(message: str) -> Advice | None:
    """Explain what sbatch printed when it refused a job; None where the message is not known."""
    lines = message.splitlines()
    for line in lines:
        code = line.rpartition(": ")[2].strip()
        found = _by_code(code) if re.fullmatch(r"[A-Z][A-Za-z]+", code) else None
        if found is not None:
            return _explained(found, code, code, "JOBID")
        if re.fullmatch(r"(QOS|Assoc)(Max|Min|Grp)\w+", code):  # a limit that this job exceeds alone (DenyOnLimit)
            whose = _whose(code)[0]
            return Advice(code, f"The job alone exceeds a limit of the {whose}.", "request less", "person")
    text = message.lower()
    row = next((row for row in (*_TABLE, _POLICY_ROW) if row.says and re.search(row.says, text)), None)
    if row is not None:
        return _explained(row, message, "", "JOBID")
    hint = next((hint for pattern, hint in _REFUSED_ONLY if re.search(pattern, text)), None)
    return Advice(message, "", hint, "person") if hint is not None else None


def failed_to_start(reason: str | None) -> str | None:
    """The failure class (job/retry.py) of a job that can never start for this reason; None otherwise."""
    found = advice(reason)
    return {"person": "submit_rejected", "launch": "node_failure"}.get(found.kind) if found is not None else None


def _by_code(code: str) -> _Row | None:
    plain = code if code == "SPECIAL_EXIT" else code.replace("_", " ")
    names = (plain, code)
    known = (row for row in _TABLE if row.codes)
    return next((row for row in known if any(re.fullmatch(row.codes, one, re.IGNORECASE) for one in names)), None)


def _explained(row: _Row, reason: str, code: str, job_id: str) -> Advice:
    whose, table = _whose(code)
    return Advice(reason, row.meaning.format(whose=whose), row.action.format(id=job_id, table=table), row.kind)


def _whose(code: str) -> tuple[str, str]:
    return ("account", "assoc user=$USER") if code.startswith(("Assoc", "Max")) else ("QOS", "qos")
