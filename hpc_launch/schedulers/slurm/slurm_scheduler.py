"""Slurm as a scheduler."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.scheduler import ArrayRoom, JobRecord, QueueLimits, Reservations, Scheduler, Submission
from hpc_launch.schedulers.slurm import query_cluster, query_jobs, query_limits, run_command
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
        jobs = shared_answer().everything(query_jobs.ask)
        matches = {record.job_id: record for record in jobs if record.name == job_name}
        try:
            accounted = query_jobs.from_sacct(f"--name={job_name}", f"--starttime=now-{FIND_DAYS}days")
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
