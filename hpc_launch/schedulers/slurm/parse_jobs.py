"""Parse the output of squeue and sacct on jobs. Pure; lines that cannot be parsed are skipped.

The job name, which is free text, comes last in each format, so that its content cannot shift a column.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise

from msgspec.structs import replace

from hpc_launch.schedulers.scheduler import ENDED_STATES, JobRecord


def base_state(text: str) -> str:
    """Slurm's base state: `CANCELLED by 1000` and `CANCELLED+` are CANCELLED."""
    words = text.split()
    return words[0].rstrip("+").upper() if words else "UNKNOWN"


def epoch(text: str) -> float | None:
    """Seconds since the epoch of a time that Slurm prints as `%s`, which we request, or as ISO local time."""
    text = text.strip()
    if re.fullmatch(r"\d{1,11}", text, re.ASCII):
        return float(text) or None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def exit_and_signal(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal of `1:0` or `0:9`; a job killed by a signal has no exit code."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text.strip(), re.ASCII)
    if match is None:
        return None, None
    code, signal = int(match[1]), int(match[2])
    return (None, signal) if signal else (code, None)


def wait_status(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal of squeue's `exit_code`: the raw wait(2) status (22.05) or `1:0` (24.11 and newer)."""
    if ":" in text:
        return exit_and_signal(text)
    if not re.fullmatch(r"\d{1,5}", text.strip(), re.ASCII):
        return None, None
    status = int(text)
    signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return (None, signal) if signal else (os.WEXITSTATUS(status), None)


def number(text: str | None) -> int | None:
    """A count; None for anything else that Slurm prints in its place."""
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII) else None


def optional_text(text: str | None) -> str | None:
    """A text; None for Slurm's placeholders for an empty value."""
    cleaned = (text or "").strip()
    return None if cleaned in {"", "None", "(null)", "N/A", "n/a", "None assigned", "Unknown"} else cleaned


SQUEUE_FIELDS = {
    "JobArrayID": "JobID",
    "State": "State",
    "Reason": "Reason",
    "exit_code": "ExitCode",
    "RestartCnt": "Restarts",
    "SubmitTime": "Submit",
    "StartTime": "Start",
    "EndTime": "End",
    "NodeList": "NodeList",
    "Name": "JobName",
}
"""The columns of squeue, and the same ones of sacct."""
SQUEUE_FORMAT = ",".join(f"{field}:|" for field in SQUEUE_FIELDS)
"""For `squeue -O`: a field with a suffix and no width is not truncated; a bare one is, at 20 characters (squeue(1))."""
SACCT_FIELDS = ("JobID", "State", "ExitCode", "DerivedExitCode", "Submit", "Start", "End", "NodeList", "Reason")
SACCT_NEWER_FIELDS = ("Restarts", "FailedNode")
"""Since 24.11 and 23.02. sacct fails if given an unknown column, so `--helpformat` is queried first."""

OWN_STEP = "hpc-launch"
"""The name of the steps that the script starts beside the training (slurm_templates/parts). The training does not fail
because one of them is killed, for example by its time limit."""

REFUSED_S = 60.0
"""A start of a job that its nodes refuse lasts no longer. A cancellation that comes later is a person's."""

JOB_ID = re.compile(r"(?P<job>\d+)(?:_(?P<index>\d+)|_\[(?P<ranges>[\d,:-]+)(?:%\d+)?(?:\.{3})?\]|\+(?P<part>\d+))?")
_MAX_ARRAY = 4_000_001  # the hard limit of MaxArraySize (slurm.conf(5)): no range is longer


def _record(source: str, as_of: float, row: Mapping[str, str | None]) -> JobRecord:
    """The record of a row by sacct's names of the columns."""
    words = {name: text or "" for name, text in row.items()}
    state = base_state(words.get("State", ""))
    ended, pending = state in ENDED_STATES, state == "PENDING"
    code, signal = wait_status(words.get("ExitCode", "")) if ended else (None, None)
    start = epoch(words.get("Start", ""))
    return JobRecord(
        job_id=words["JobID"].strip(),
        state=state,
        source=source,
        as_of=as_of,
        name=row.get("JobName"),
        reason=optional_text(words.get("Reason")),
        exit_code=code,
        signal=signal,
        nodes=optional_text(words.get("NodeList")),
        submitted=epoch(words.get("Submit", "")),
        # Before the start this is the scheduler's estimate; before the end, the time limit.
        started=None if pending else start,
        ended=epoch(words.get("End", "")) if ended else None,
        expected_start=start if pending else None,
        restarts=number(words.get("Restarts")),
    )


def squeue(text: str, as_of: float) -> list[JobRecord]:
    """Parse `squeue -h -O SQUEUE_FORMAT`: one record per job, array entry or pending range of entries."""
    records = []
    for line in text.splitlines():
        values = line.removesuffix("|").split("|", len(SQUEUE_FIELDS) - 1)
        if len(values) == len(SQUEUE_FIELDS) and JOB_ID.fullmatch(values[0].strip()):
            records.append(_record("squeue", as_of, dict(zip(SQUEUE_FIELDS.values(), values, strict=True))))
    return records


def sacct_columns(helpformat: str) -> tuple[str, ...]:
    """The columns to request from this sacct, given the output of `sacct --helpformat`."""
    known = set(helpformat.split())
    return (*SACCT_FIELDS, *(field for field in SACCT_NEWER_FIELDS if field in known), "JobName")


def sacct(text: str, as_of: float) -> list[JobRecord]:
    """Parse `sacct -P -D -o COLUMNS`: the newest record of each job id, with its steps.

    An ended state without an End time is ignored: while the database lags, sacct prints FAILED with exit code 0 and no
    end. So is exit code 0 of a job that did not complete: sacct prints `0:0` for TIMEOUT and, for exit codes above
    127, the code minus 128.
    """
    lines = text.splitlines()
    names = lines[0].split("|") if lines else []
    if "JobID" not in names or "State" not in names:
        return []
    rows: dict[str, list[dict[str, str]]] = {}
    steps: dict[str, list[tuple[str, str, str, str]]] = {}
    beside: set[str] = set()
    for line in lines[1:]:
        values = line.split("|", len(names) - 1)
        if len(values) != len(names):
            continue
        row = dict(zip(names, values, strict=True))
        job_id, dot, step = row["JobID"].strip().partition(".")
        if not JOB_ID.fullmatch(job_id):
            continue
        if dot and row.get("JobName") == OWN_STEP:
            beside.add(job_id)
            continue
        if dot:
            ended = base_state(row["State"]), row.get("ExitCode", "").strip()
            steps.setdefault(job_id, []).append((step, *ended, row.get("Start", "")))
            continue
        rows.setdefault(job_id, []).append(row)
        steps[job_id] = []  # a record's steps follow it; earlier ones belong to an earlier start
    records = (
        _sacct_record(job_id, group, as_of, tuple(steps[job_id]), beside=job_id in beside)
        for job_id, group in rows.items()
    )
    return [record for record in records if record is not None]


def _sacct_record(
    job_id: str, rows: list[dict[str, str]], as_of: float, steps: tuple[tuple[str, str, str, str], ...], *, beside: bool
) -> JobRecord | None:
    # A requeue resets the submit time. Of two rows with the same time, the later one is newer.
    row = max(reversed(rows), key=lambda one: epoch(one.get("Submit", "")) or 0.0)
    record = _record("sacct", as_of, row | {"JobID": job_id})
    if record.ended_for_good and record.ended is None:
        return None
    restarts = _restarts(rows) if record.restarts is None else record.restarts
    own_steps = tuple((step, state, code) for step, state, code, _ in steps) if row is rows[-1] else ()
    begun = epoch(steps[0][3]) if own_steps else None
    over = record.ended_for_good
    return replace(
        record,
        exit_code=None if record.exit_code == 0 and record.state != "COMPLETED" else record.exit_code,
        derived_exit_code=_derived(row, own_steps, others=beside or restarts > 0) if over else None,
        restarts=restarts,
        steps=own_steps,
        lost_start=begun if _is_refused(record, row["State"], begun) else None,
    )


def _is_refused(record: JobRecord, state: str, begun: float | None) -> bool:
    """Whether the nodes refused to start a job that runs there already, so that Slurm cancelled it.

    After a crash, slurmctld may take up a running job as pending. It ends the job on its nodes and starts it again; a
    slurmd that refuses and cannot requeue the job cancels it as root (`_launch_job_fail`, src/slurmd/slurmd/req.c; seen
    with 22.05, 24.11 and 26.05). Then the first step (`begun`) is older than the start of the job.
    """
    start, end = record.started, record.ended
    if state.split() != ["CANCELLED", "by", "0"] or begun is None or start is None or end is None:
        return False
    return record.nodes is not None and begun < start <= end <= start + REFUSED_S


def _derived(row: dict[str, str], steps: tuple[tuple[str, str, str], ...], *, others: bool) -> int | None:
    """The highest exit code of these steps; None if it is unknown, or may belong to `others`.

    Slurm's includes those beside the training and, after a requeue, those of the previous start, which the requeue
    killed (26.05: a job that then completed has `0:15`). It is used only if one of these steps failed, too.

    The database may be told of the end of a step after that of the job: until then the step is RUNNING, and the job's
    row may lack its code.
    """
    derived = _shell_code(row.get("DerivedExitCode", ""))
    if derived and others and not any(code != "0:0" for _, _, code in steps):
        derived = 0 if steps else None
    if not derived and any(state not in ENDED_STATES for _, state, _ in steps):
        return None
    if derived is None:
        return None
    return max([derived, *(_shell_code(code) or 0 for step, _, code in steps if step.isdecimal())])


def _shell_code(text: str) -> int | None:
    """The exit code as a shell shows it: 128 plus the number of a signal."""
    code, signal = exit_and_signal(text)
    return 128 + signal if signal else code


def _restarts(rows: list[dict[str, str]]) -> int:
    """The number of requeues if sacct has no such column: one record per start, plus one per resize."""
    name = rows[-1].get("JobName")
    same_job = [row for row in rows if row.get("JobName") == name]
    return sum(base_state(row["State"]) != "RESIZING" for row, _ in pairwise(same_job))


def covers(printed: str, job_id: str) -> bool:
    """Whether a row printed as `12_[4-9%2]` includes job id `12_5`."""
    row, asked = JOB_ID.fullmatch(printed), JOB_ID.fullmatch(job_id)
    if row is None or asked is None or row["job"] != asked["job"]:
        return False
    if not row["ranges"] or not asked["index"]:
        return printed == job_id
    return any(int(asked["index"]) in _range(part) for part in row["ranges"].split(",") if part)


def _range(part: str) -> range:
    """The indices of `4`, `4-9` or `0-8:2`; empty if it cannot be parsed."""
    match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part, re.ASCII)
    if match is None:
        return range(0)
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    return range(first, min(last, _MAX_ARRAY) + 1, max(step, 1))


def pick(job_id: str, records: Iterable[JobRecord]) -> JobRecord | None:
    """The record that represents `job_id`; see RecordTable."""
    return RecordTable(records).pick(job_id)


class RecordTable:
    """Records by job, to pick those of many jobs."""

    def __init__(self, records: Iterable[JobRecord]) -> None:
        self._exact: dict[str, JobRecord] = {}
        self._of_job: dict[str, list[JobRecord]] = {}
        self._ranges: dict[str, list[JobRecord]] = {}
        for record in records:
            self._exact.setdefault(record.job_id, record)
            job = re.split(r"[_+]", record.job_id, maxsplit=1)[0]
            self._of_job.setdefault(job, []).append(record)
            if "[" in record.job_id:
                self._ranges.setdefault(job, []).append(record)

    def pick(self, job_id: str) -> JobRecord | None:
        """The record of a job.

        Its own record if there is one; else the range that contains the array entry, or the only row that accounting
        keeps of the rest of an array that ended (`12 CANCELLED`, seen with 22.05); the leader of a heterogeneous job;
        for a whole array an active entry, else a failed one.
        """
        if job_id in self._exact:
            return self._exact[job_id]
        job, task, _ = job_id.partition("_")
        if task:
            rest = self._exact.get(job)
            rest = rest if rest is not None and rest.ended_for_good and rest.source == "sacct" else None
            return next((one for one in self._ranges.get(job, ()) if covers(one.job_id, job_id)), rest)
        return min(self._of_job.get(job_id, ()), key=_rank, default=None)


def _rank(record: JobRecord) -> tuple[bool, bool, bool]:
    return record.ended_for_good, record.state == "COMPLETED", not record.job_id.endswith("+0")
