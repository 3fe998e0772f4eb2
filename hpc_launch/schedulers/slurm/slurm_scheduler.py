"""Slurm as a scheduler. The state of jobs: squeue first, then sacct, then squeue by id."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.scheduler import ArrayRoom, JobRecord, QueueLimits, Reservations, Scheduler, Submission
from hpc_launch.schedulers.slurm import parse_jobs, query_cluster, query_limits, run_command
from hpc_launch.schedulers.slurm.shared_query import shared_answer

FIND_DAYS = 2
"""Days that `find` searches back: the next command looks up a submission that got no answer."""

_OUT_OF_SERVICE = re.compile(r"down|drain|fail|power|unk")
_OVER = re.compile(r"invalid job id|already completing or completed", re.IGNORECASE)


class SlurmScheduler(Scheduler):
    """Submits and queries jobs through Submitit. What `submit` does not need is imported when it is used."""

    takes = frozenset({"begin", "dependency", "exclude"})

    def submit(self, submission: Submission) -> str:
        from hpc_launch.schedulers.slurm import submitit_executor

        job = submitit_executor.submit(submission)
        if submission.array:
            return job.job_id  # its tasks have no ids yet
        now = time.time()
        # Seed the shared answer, so that the next query does not have to run for this job alone.
        shared_answer().note(
            JobRecord(job.job_id, "PENDING", "squeue", as_of=now, name=submission.job_name, submitted=now, restarts=0)
        )
        return job.job_id

    def test_only(self, submission: Submission) -> str:
        from hpc_launch.schedulers.slurm import submitit_executor

        with tempfile.TemporaryDirectory(prefix="hpc-launch-") as folder:
            return submitit_executor.trial(submission, Path(folder))

    def find(self, job_name: str) -> list[JobRecord]:
        # Query now, regardless of the rate limit, and share the answer with the next poll.
        jobs = shared_answer().everything(query_jobs)
        matches = {record.job_id: record for record in jobs if record.name == job_name}
        try:
            accounted = from_sacct(f"--name={job_name}", f"--starttime=now-{FIND_DAYS}days")
        except Unreachable:
            accounted = []  # no accounting available: rely on the controller
        for record in accounted:
            if record.name == job_name:
                matches.setdefault(record.job_id, record)
        return [record for record in matches.values() if not _rejected(record)]

    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        from hpc_launch.schedulers.slurm import submitit_executor

        ids = list(job_ids)
        return submitit_executor.follow(ids, fresh=fresh) if ids else {}

    def warn(self, job_id: str, *, preempt: bool = False) -> None:
        # scancel(1): --batch signals only the batch shell; without it, all steps except the batch step.
        options = ["--signal=TERM"] if preempt else ["--batch", "--signal=USR1"]
        run_command.ask(["scancel", *options, job_id])

    def cancel(self, job_id: str) -> None:
        answer = run_command.run(["scancel", job_id])
        if answer.code != 0 and not _OVER.search(answer.last_line):
            raise Unreachable(f"scancel: {answer.last_line}")

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        run_command.ask(["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}"])

    def preempted(self, job_id: str) -> bool:
        # `squeue` and `scontrol` say COMPLETING while a job is ending; sacct already says PREEMPTED.
        with suppress(Unreachable):
            query = ["sacct", "--noheader", "--allocations", "--parsable2", "--format=State", f"--jobs={job_id}"]
            states = [line.split()[0] for line in run_command.ask(query).splitlines() if line.strip()]
            if states and states[-1] not in ("RUNNING", "COMPLETING", "PENDING"):
                return states[-1] == "PREEMPTED"
        with suppress(Unreachable):
            row = run_command.ask(["scontrol", "--oneliner", "show", "job", job_id])
            shown = next(query_cluster.records(row), None)
            # PreemptTime is not set for a cancelled job or for one at its time limit.
            return shown is not None and shown.get("PreemptTime", "None") not in ("None", "Unknown", "N/A")
        return False

    def cluster(self) -> str | None:
        return shared_answer().cluster(lambda: query_cluster.ask_settings().get("ClusterName"))

    def nodes(self, names: Sequence[str]) -> dict[str, str]:
        lines = _lines(["sinfo", "--all", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N|%T"])
        pairs = (line.partition("|") for line in lines)
        # `down*`: the asterisk marks a node that does not respond (sinfo(1), NODE STATE CODES).
        return {name: state if _OUT_OF_SERVICE.match(state) else "" for name, _, state in pairs if name}

    def pending_reasons(self, partition: str | None) -> dict[str, int]:
        command = ["squeue", "--noheader", "--states=PENDING", "--format=%r"]
        return dict(Counter(filter(None, _lines([*command, *_in(partition)]))))

    def limits(self, account: str | None, partition: str | None, qos: str | None) -> QueueLimits:
        return query_limits.limits(account, partition, qos)

    def array_room(self, account: str | None, partition: str | None, qos: str | None) -> ArrayRoom | None:
        return query_limits.array_room(account, partition, qos)

    def reservations(self, partition: str | None) -> Reservations:
        return query_limits.reservations(partition)

    def size(self, partition: str | None) -> int | None:
        lines = _lines(["sinfo", "--noheader", "--format=%P|%D", *_in(partition)])
        rows = [(name, int(count)) for name, _, count in (line.partition("|") for line in lines) if count.isdecimal()]
        # An asterisk after the name marks the default partition (sinfo(1), %P).
        return sum(count for name, count in rows if partition or name.endswith("*")) or None


def _lines(command: Sequence[str]) -> list[str]:
    """The lines that a command prints; none if Slurm does not answer."""
    try:
        return [line.strip() for line in run_command.ask(command).splitlines()]
    except Unreachable:
        return []


def _in(partition: str | None) -> list[str]:
    return [f"--partition={partition}"] if partition else []


def _rejected(record: JobRecord) -> bool:
    """Whether this is the record of a rejected submission: FAILED, without duration and nodes."""
    return record.state == "FAILED" and record.nodes is None and record.started == record.ended


_BY_ID = 5
"""Maximum number of jobs unknown to squeue and sacct that one round queries individually."""
_SACCT_IDS = 200
"""Maximum number of ids per sacct call, to limit the length of the command line."""


def from_squeue(*which: str) -> list[JobRecord]:
    """The jobs that the controller knows, including hidden partitions. Raises Unreachable."""
    as_of = time.time()
    command = ["squeue", *which, "--all", "--noheader", "--states=all", f"--Format={parse_jobs.SQUEUE_FORMAT}"]
    return parse_jobs.squeue(run_command.ask(command), as_of)


@lru_cache(maxsize=1)
def _columns() -> tuple[str, ...]:
    return parse_jobs.sacct_columns(run_command.ask(["sacct", "--helpformat"]))


def from_sacct(*options: str) -> list[JobRecord]:
    """The newest accounting records selected by sacct's `options`. Raises Unreachable."""
    as_of = time.time()
    columns = ",".join(_columns())
    return parse_jobs.sacct(
        run_command.ask(["sacct", "--parsable2", "--duplicates", f"--format={columns}", *options]), as_of
    )


def from_sacct_by_id(job_ids: Iterable[str]) -> list[JobRecord]:
    """Accounting records by job id; empty if there is no accounting, which is common."""
    # A whole array, where several of its tasks are wanted: sacct takes longer for a list of tasks.
    names = [job_id.split("+")[0] for job_id in job_ids]
    arrays = Counter(name.partition("_")[0] for name in names)
    ids = sorted({job if arrays[job := name.partition("_")[0]] > 1 else name for name in names})
    records: list[JobRecord] = []
    with suppress(Unreachable):
        for start in range(0, len(ids), _SACCT_IDS):
            records += from_sacct(f"--jobs={','.join(ids[start : start + _SACCT_IDS])}")
    # The queue lists the tasks that wait. The row of an array in the accounting keeps tasks that were cancelled.
    return [record for record in records if record.ended_for_good or "[" not in record.job_id]


def query_jobs(job_ids: Iterable[str], known: Mapping[str, JobRecord]) -> list[JobRecord]:
    """One round of queries for all these jobs.

    One squeue call covers all jobs of the user. sacct is queried for jobs that squeue does not know and, once, for
    ended jobs: only sacct has the derived exit code and the steps. Last comes squeue by id: jobs of another user.
    `known`: previous records by id; jobs whose record is complete are not queried again.

    Raises Unreachable if squeue fails. A failing sacct is not an error, because many clusters have none.
    """
    records = from_squeue("--me")
    wanted = list(job_ids)
    table = parse_jobs.RecordTable(records)
    rest = [job_id for job_id in wanted if _incomplete(table.pick(job_id), known.get(job_id))]
    accounted = from_sacct_by_id(rest) if rest else []
    by_id: dict[str, list[JobRecord]] = {}
    for record in accounted:
        by_id.setdefault(record.job_id, []).append(record)
    merged = [_with_details(record, by_id.get(record.job_id, []), known) for record in records]
    merged += [record for record in accounted if table.pick(record.job_id) is None]
    table = parse_jobs.RecordTable(merged)
    unknown = [job_id for job_id in wanted if table.pick(job_id) is None]
    for job_id in unknown[:_BY_ID]:
        with suppress(Unreachable):
            merged += from_squeue(f"--jobs={job_id.partition('+')[0]}")
    return merged


def _incomplete(record: JobRecord | None, before: JobRecord | None) -> bool:
    """Whether sacct can add information."""
    if record is None:
        return True
    return record.ended_for_good and not _same_end(record, before)


def _same_end(record: JobRecord, before: JobRecord | None) -> bool:
    """Whether `before` describes the same end of the same start and includes sacct's details."""
    return (
        before is not None
        and before.derived_exit_code is not None
        and (before.state, before.ended, before.job_id) == (record.state, record.ended, record.job_id)
    )


def _with_details(record: JobRecord, accounted: list[JobRecord], known: Mapping[str, JobRecord]) -> JobRecord:
    """squeue's record with sacct's derived exit code and steps, and whether Slurm cancelled it by itself.

    Keeps squeue's exit code: sacct subtracts 128 from codes above 127 (22.05).
    """
    if not record.ended_for_good:
        return record
    # A lagging database may still have the row of an earlier start.
    own = (one for one in accounted if one.job_id == record.job_id and one.submitted == record.submitted)
    before = known.get(record.job_id)
    other = before if _same_end(record, before) else next((one for one in own if one.ended_for_good), None)
    if other is None:
        return record
    return replace(record, derived_exit_code=other.derived_exit_code, steps=other.steps, lost_start=other.lost_start)
