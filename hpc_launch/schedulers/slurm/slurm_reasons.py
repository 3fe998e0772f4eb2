"""What Slurm's reasons mean, of pending jobs and of refused submissions alike: the table slurm_reasons.yaml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.installed import read_shipped

Kind = Literal["passes", "person", "held", "launch", "budget"]
"""Who ends it; see the table."""

_GIVE_UP = "cancel it, fix the job file and submit again"


class Advice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table: the meaning of a reason, and what to do."""

    kind: Kind
    codes: str = ""
    says: str = ""
    meaning: str = ""
    """One sentence."""
    action: str
    """What to do, with the command if there is one."""

    @property
    def never(self) -> bool:
        """Whether the job cannot start until someone acts."""
        return self.kind != "passes"

    def __str__(self) -> str:
        return f"{self.meaning} {self.action[0].upper()}{self.action[1:]}."


def _table() -> list[Advice]:
    rows: list[Advice] = read_shipped(Path(__file__).with_suffix(".yaml"), list[Advice])
    return rows


def advice(reason: str | None, job_id: str = "JOBID") -> Advice | None:
    """Explain a pending reason as printed by squeue, sacct or scontrol; None for an ordinary one."""
    # scontrol prints underscores for spaces; details may follow a comma.
    code = re.split(r"[,:(]", (reason or "").strip().strip("()"), maxsplit=1)[0].strip()
    found = _by_code(code) if code else None
    if found is None:
        return None
    action = found.action if found.kind != "person" or "{id}" in found.action else f"{found.action}; {_GIVE_UP}"
    return _filled(replace(found, action=action), code, job_id)


def refusal(message: str) -> Advice | None:
    """Explain what sbatch printed when it refused a job; None where the message is not known."""
    for line in message.splitlines():
        code = line.rpartition(": ")[2].strip()
        found = _by_code(code) if re.fullmatch(r"[A-Z][A-Za-z]+", code) else None
        if found is not None:
            return _filled(found, code, "JOBID")
        if re.fullmatch(r"(QOS|Assoc)(Max|Min|Grp)\w+", code):  # the job alone exceeds it (DenyOnLimit)
            return Advice(kind="person", meaning=f"The job alone exceeds {code}.", action="request less")
    text = message.lower()
    row = next((row for row in _table() if row.says and re.search(row.says, text)), None)
    return _filled(row, "", "JOBID") if row is not None else None


def failed_to_start(reason: str | None) -> str | None:
    """The failure class (job/retry.py) of a job that can never start for this reason; None otherwise."""
    found = advice(reason)
    return {"person": "submit_rejected", "launch": "node_failure"}.get(found.kind) if found is not None else None


def _by_code(code: str) -> Advice | None:
    names = (code, code.replace("_", " "))
    known = (row for row in _table() if row.codes)
    return next((row for row in known if any(re.fullmatch(row.codes, one, re.IGNORECASE) for one in names)), None)


def _filled(row: Advice, code: str, job_id: str) -> Advice:
    of_account = code.startswith(("Assoc", "Max"))
    whose, table = ("account", "assoc user=$USER") if of_account else ("QOS", "qos")
    action = row.action.format(id=job_id, table=table)
    return replace(row, meaning=row.meaning.format(whose=whose), action=action)
