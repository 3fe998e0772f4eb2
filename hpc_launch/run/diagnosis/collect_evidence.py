"""Collect the evidence that an attempt, or any job, left behind, and diagnose it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from hpc_launch.recover.diagnose import diagnose
from hpc_launch.recover.diagnosis import Diagnosis
from hpc_launch.recover.evidence import EndFacts, Evidence, LogScan, SchedulerFacts
from hpc_launch.recover.rulebook import Rulebook
from hpc_launch.recover.scan_log import LogScanner, scan
from hpc_launch.run.diagnosis.artifacts import CHUNK, node_exits, notes, read_chunks, scans
from hpc_launch.run.diagnosis.rule_files import rulebook
from hpc_launch.run.layout import AttemptFolder, RunFolder
from hpc_launch.run.records.attempt_files import AttemptFiles, Reader
from hpc_launch.run.records.claim import CANCELLED
from hpc_launch.run.records.diagnosis_record import keep_diagnosis, kept_diagnosis
from hpc_launch.run.records.run_info import read_info
from hpc_launch.run.records.verdict_record import read_verdict
from hpc_launch.run.status.finished import unfinished
from hpc_launch.run.status.progress_reader import ProgressReader
from hpc_launch.schedulers.scheduler import JobRecord
from hpc_launch.spec.hostlist import names_or_text

STDIN = "-"


def diagnose_attempt(
    _run: RunFolder, attempt: AttemptFolder, *, rules: Rulebook | None = None, word: JobRecord | None = None
) -> Diagnosis:
    """Diagnose an attempt from all its records and the scheduler's. Never raises: unreadable files are left out.

    The diagnosis of an attempt whose final state is known is kept in diagnosis.json, so that it is made only once.
    `word`: the scheduler's current record, where it is not kept yet.
    """
    kept = kept_diagnosis(attempt)
    if kept is not None:
        return _with_blamed_nodes(attempt, kept)
    book = rules if rules is not None else rulebook()
    evidence = gather(attempt, book, word)
    diagnosis = diagnose(evidence, book)
    if evidence.scheduler is not None and attempt.final.exists():
        keep_diagnosis(attempt, diagnosis)
    return _with_blamed_nodes(attempt, diagnosis)


def _with_blamed_nodes(attempt: AttemptFolder, diagnosis: Diagnosis) -> Diagnosis:
    """Add the nodes that the verdict on record blames, where the evidence names none.

    The driver that decided could still see in the states of the nodes which one had failed.
    """
    verdict = read_verdict(attempt)
    if verdict is None or diagnosis.bad_nodes or not verdict.blamed:
        return diagnosis
    if verdict.failure_class != diagnosis.failure_class:
        return diagnosis
    blamed, first = verdict.blamed, diagnosis.first_failure
    if len(blamed) == 1 and first.node is None:
        first = replace(first, node=blamed[0])
    action = diagnosis.default_verdict if diagnosis.default_verdict == "STOP" else "RETRY_ELSEWHERE"
    return replace(diagnosis, bad_nodes=blamed, first_failure=first, default_verdict=action)


def gather(attempt: AttemptFolder, rules: Rulebook, word: JobRecord | None = None) -> Evidence:
    """Collect the evidence of an attempt."""
    files = Reader().read(attempt)
    record = files.final or _from_accounting(files) or word
    nodes = names_or_text(record.nodes if record else None) or files.nodes
    end, cancel = _end_facts(files), files.cancel
    return Evidence(
        logs=tuple(scans(attempt, rules, nodes)),
        scheduler=_scheduler_facts(record),
        end=end,
        node_exits=tuple(node_exits(attempt, nodes)),
        notes=tuple(notes(attempt, nodes)),
        nodes=nodes,
        cancelled_by=(cancel.by or "hpc-launch") if cancel is not None else None,
        cancelled_at=cancel.time if cancel is not None else None,
        void=None if files.void is None or files.void.startswith(CANCELLED) else files.void,
        unfinished=unfinished(files.own_end, ProgressReader().read(files, None)),
        alive=end is None and record is None,
        of_a_run=True,
    )


def diagnose_files(names: Sequence[str], rules: Rulebook, stdin: BinaryIO) -> Diagnosis:
    """Diagnose a job by its log files alone; `-` is `stdin`. Raises OSError for a file that cannot be read."""
    scanned = [_scan_file(name, number, rules, stdin) for number, name in enumerate(names)]
    return diagnose(Evidence(logs=tuple(scanned)), rules)


def _scan_file(name: str, number: int, rules: Rulebook, stdin: BinaryIO) -> LogScan:
    if name == STDIN:
        return scan(rules, "stdin", iter(lambda: stdin.read(CHUNK), b""), source=number)
    try:
        return read_chunks(Path(name), LogScanner(rules, name, source=number), wait=True)
    except OSError as error:
        # Python names the file of a failed open, but not of a failed read.
        raise OSError(error.errno, error.strerror, name) from error


def _scheduler_facts(record: JobRecord | None) -> SchedulerFacts | None:
    if record is None:
        return None
    return SchedulerFacts(
        state=record.state,
        source=record.source,
        reason=record.reason,
        exit_code=record.exit_code,
        signal=record.signal,
        derived_exit_code=record.derived_exit_code,
        steps=record.steps,
        ended=record.ended,
    )


def _from_accounting(files: AttemptFiles) -> JobRecord | None:
    """The final state by sacct, which alone knows the steps, where it is not on record yet; None without an answer."""
    info = read_info(files.attempt.run)
    if files.job_id is None or not files.job_id.split("_")[0].isdecimal() or info is None or info.scheduler != "slurm":
        return None
    from hpc_launch.schedulers.slurm.parse_jobs import pick
    from hpc_launch.schedulers.slurm.query_jobs import from_sacct_by_id

    record = pick(files.job_id, from_sacct_by_id([files.job_id]))
    ended = record is not None and record.ended_for_good and record.ended is not None
    return record if ended else None


def _end_facts(files: AttemptFiles) -> EndFacts | None:
    end = files.own_end
    if end is None or end.exit_code is None:
        return None
    return EndFacts(
        exit_code=end.exit_code,
        signal=end.signal,
        phase=end.phase,
        warned=end.warned,
        preempted=end.preempted,
        lost_nodes=end.lost_nodes,
        ended=end.ended,
    )
