"""Reads what squeue, sacct and scontrol print. Pure, and never surprised: a line that it cannot read is left out.

The free text (a job's name) stands last in each format, so that whatever it holds cannot shift a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from hpc_launch.schedulers.scheduler import ENDED_STATES, JobRecord
from hpc_launch.schedulers.slurm.parse_values import base_state, epoch, exit_and_signal, number, wait_status, word

SQUEUE_FIELDS = (
    "JobArrayID",
    "State",
    "Reason",
    "exit_code",
    "RestartCnt",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "NodeList",
    "Name",
)
SQUEUE_FORMAT = ",".join(f"{field}:|" for field in SQUEUE_FIELDS)
"""For `squeue -O`: a field with a suffix and no width is not cut (squeue(1); a bare field is cut at 20 characters)."""

SACCT_FIELDS = ("JobID", "State", "ExitCode", "DerivedExitCode", "Submit", "Start", "End", "NodeList", "Reason")
SACCT_NEWER_FIELDS = ("Restarts", "FailedNode")
"""Since 24.11 and 23.02; a column that sacct does not know fails the whole call, so `--helpformat` is asked first."""

JOB_ID = re.compile(r"(?P<job>\d+)(?:_(?P<index>\d+)|_\[(?P<ranges>[\d,:-]+)(?:%\d+)?(?:\.{3})?\]|\+(?P<part>\d+))?")
_MAX_ARRAY = 4_000_001  # the hard limit of MaxArraySize (slurm.conf(5)): no range is longer


def squeue(text: str, as_of: float) -> list[JobRecord]:
    """The jobs of `squeue -h -O SQUEUE_FORMAT`, one record a job, array entry or waiting range of entries."""
    records = []
    for line in text.splitlines():
        values = line.split("|", len(SQUEUE_FIELDS) - 1)
        if len(values) != len(SQUEUE_FIELDS) or not JOB_ID.fullmatch(values[0].strip()):
            continue
        job_id, state, reason, status, restarts, submit, start, end, nodes, name = values
        state = base_state(state)
        ended = state in ENDED_STATES
        code, signal = wait_status(status) if ended else (None, None)
        records.append(
            JobRecord(
                job_id=job_id.strip(),
                state=state,
                source="squeue",
                as_of=as_of,
                name=name.removesuffix("|"),
                reason=word(reason),
                exit_code=code,
                signal=signal,
                nodes=word(nodes),
                submitted=epoch(submit),
                # Before the start it is the scheduler's estimate, before the end the time limit's.
                started=None if state == "PENDING" else epoch(start),
                ended=epoch(end) if ended else None,
                restarts=number(restarts),
            )
        )
    return records


def sacct_columns(helpformat: str) -> tuple[str, ...]:
    """Which columns to ask this sacct for, given the answer to `sacct --helpformat`."""
    known = set(helpformat.split())
    return (*SACCT_FIELDS, *(field for field in SACCT_NEWER_FIELDS if field in known), "JobName")


def sacct(text: str, as_of: float) -> list[JobRecord]:
    """The jobs of `sacct -P -D -o COLUMNS` with their steps, the newest record of each id.

    A record is not believed over without an End time: while the database catches up sacct says FAILED with exit
    code 0 and no end for a job whose end it does not know yet. Nor is a zero exit code of a job that did not
    complete: sacct prints `0:0` for TIMEOUT and, for exit codes over 127, the code less 128.
    """
    lines = text.splitlines()
    names = lines[0].split("|") if lines else []
    if "JobID" not in names or "State" not in names:
        return []
    rows: dict[str, list[dict[str, str]]] = {}
    steps: dict[str, list[tuple[str, str, str]]] = {}
    for line in lines[1:]:
        values = line.split("|", len(names) - 1)
        if len(values) != len(names):
            continue
        row = dict(zip(names, values, strict=True))
        job_id, dot, step = row["JobID"].strip().partition(".")
        if not JOB_ID.fullmatch(job_id):
            continue
        if dot:
            steps.setdefault(job_id, []).append((step, base_state(row["State"]), row.get("ExitCode", "").strip()))
            continue
        rows.setdefault(job_id, []).append(row)
        steps[job_id] = []  # the steps of a record follow it; those before belong to an earlier start
    records = (_sacct_record(job_id, group, as_of, tuple(steps[job_id])) for job_id, group in rows.items())
    return [record for record in records if record is not None]


def _sacct_record(
    job_id: str, rows: list[dict[str, str]], as_of: float, steps: tuple[tuple[str, str, str], ...]
) -> JobRecord | None:
    # A requeue sets the submit time anew. Of two rows of one second the later one is newer.
    row = max(reversed(rows), key=lambda one: epoch(one.get("Submit", "")) or 0.0)
    state = base_state(row["State"])
    ended = epoch(row.get("End", ""))
    over = state in ENDED_STATES
    if over and ended is None:
        return None
    code, signal = exit_and_signal(row.get("ExitCode", "")) if over else (None, None)
    restarts = number(row.get("Restarts"))
    restarts = _restarts(rows) if restarts is None else restarts
    own_steps = steps if row is rows[-1] else ()
    return JobRecord(
        job_id=job_id,
        state=state,
        source="sacct",
        as_of=as_of,
        name=row.get("JobName"),
        reason=word(row.get("Reason")),
        exit_code=None if code == 0 and state != "COMPLETED" else code,
        signal=signal,
        derived_exit_code=_derived(row, own_steps, restarts) if over else None,
        nodes=word(row.get("NodeList")),
        submitted=epoch(row.get("Submit", "")),
        started=epoch(row.get("Start", "")),
        ended=ended if over else None,
        restarts=restarts,
        steps=own_steps,
    )


def _derived(row: dict[str, str], steps: tuple[tuple[str, str, str], ...], restarts: int) -> int | None:
    """The highest exit code of the steps; None if it is not known whose.

    After a requeue it may be that of a step of the start before, which the requeue killed (26.05: a job that
    then completed has `0:15`). It is believed only if a step of this start failed too.
    """
    code, signal = exit_and_signal(row.get("DerivedExitCode", ""))
    derived = 128 + signal if signal else code
    if not derived or not restarts or any(exit_code != "0:0" for _, _, exit_code in steps):
        return derived
    return 0 if steps else None


def _restarts(rows: list[dict[str, str]]) -> int:
    """How often the job came back, where sacct has no such column: a record a start, but one more after a resize."""
    same = rows[-1].get("JobName")
    mine = [row for row in rows if row.get("JobName") == same]
    return sum(base_state(row["State"]) != "RESIZING" for row, _ in pairwise(mine))


def scontrol(text: str, as_of: float) -> list[JobRecord]:
    """The jobs of `scontrol -o show job`: a line a job."""
    records = []
    for line in text.splitlines():
        # A name may hold spaces and equals signs; the user with a number in brackets follows it.
        head = re.match(r"JobId=(\d+) (.*?)JobName=(.*?)(?: HetJobIdSet=\S+)? UserId=(\S+\(\d+\) .*)", line)
        if head is None:
            continue
        # The first word of a key: later ones may stand in what a user wrote, as in SubmitLine.
        fields = dict(reversed(re.findall(r"([A-Za-z/:]+)=(\S*)", f"{head[2]} UserId={head[4]}")))
        state = base_state(fields.get("JobState", ""))
        over = state in ENDED_STATES
        code, signal = exit_and_signal(fields.get("ExitCode", "")) if over else (None, None)
        nodes = re.search(r" NodeList=(\S+)", line)
        records.append(
            JobRecord(
                job_id=_scontrol_id(head[1], fields),
                state=state,
                source="scontrol",
                as_of=as_of,
                name=head[3],
                reason=word(fields.get("Reason")),
                exit_code=code,
                signal=signal,
                nodes=word(nodes[1]) if nodes else None,
                submitted=epoch(fields.get("SubmitTime", "")),
                started=None if state == "PENDING" else epoch(fields.get("StartTime", "")),
                ended=epoch(fields.get("EndTime", "")) if over else None,
                restarts=number(fields.get("Restarts")),
            )
        )
    return records


def _scontrol_id(raw: str, fields: dict[str, str]) -> str:
    array, index = fields.get("ArrayJobId"), fields.get("ArrayTaskId", "")
    if array:
        return f"{array}_{index}" if index.isdecimal() else f"{array}_[{index}]"
    leader, part = fields.get("HetJobId"), fields.get("HetJobOffset")
    return f"{leader}+{part}" if leader and part else raw


def covers(printed: str, job_id: str) -> bool:
    """Whether a row that Slurm prints as `12_[4-9%2]` stands for job id `12_5` too."""
    row, asked = JOB_ID.fullmatch(printed), JOB_ID.fullmatch(job_id)
    if row is None or asked is None or row["job"] != asked["job"]:
        return False
    if not row["ranges"] or not asked["index"]:
        return printed == job_id
    return any(int(asked["index"]) in _range(part) for part in row["ranges"].split(",") if part)


def _range(part: str) -> range:
    """The indices of `4`, `4-9` or `0-8:2`; none where it cannot be read."""
    match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part, re.ASCII)
    if match is None:
        return range(0)
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    return range(first, min(last, _MAX_ARRAY) + 1, max(step, 1))


def pick(job_id: str, records: Iterable[JobRecord]) -> JobRecord | None:
    """The record that answers for `job_id`.

    Its own if there is one; the waiting range that holds an array entry; the leader of a heterogeneous job; and
    for the id of a whole array the entry that says most: one that is not over, else one that failed.
    """
    candidates = []
    for record in records:
        if record.job_id == job_id or covers(record.job_id, job_id):
            return record
        if (match := JOB_ID.fullmatch(record.job_id)) and match["job"] == job_id:
            candidates.append(record)
    return min(candidates, key=_says_least, default=None)


def _says_least(record: JobRecord) -> tuple[bool, bool, bool]:
    return record.ended_for_good, record.state == "COMPLETED", not record.job_id.endswith("+0")
