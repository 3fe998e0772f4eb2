"""Everything that an attempt left behind, gathered for a diagnosis: records, logs, error files, the watcher's notes."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from hpc_launch import __version__
from hpc_launch.base.files import read_json, write_json
from hpc_launch.recover.diagnose import diagnose
from hpc_launch.recover.diagnosis import Diagnosis
from hpc_launch.recover.evidence import (
    EndFacts,
    Evidence,
    SchedulerFacts,
)
from hpc_launch.recover.rulebook import Rulebook
from hpc_launch.run import hosts
from hpc_launch.run.diagnosis.artifacts import node_exits, notes, scans
from hpc_launch.run.diagnosis.rule_files import rulebook
from hpc_launch.run.layout import AttemptFolder, RunFolder
from hpc_launch.run.records import values
from hpc_launch.run.records.attempt_files import CANCELLED, AttemptFiles, Reader
from hpc_launch.run.records.final_state import record_of
from hpc_launch.run.records.verdict_record import decided_of
from hpc_launch.run.status.finished import unfinished
from hpc_launch.run.status.progress_reader import ProgressReader
from hpc_launch.schedulers.scheduler import JobRecord


def diagnose_attempt(
    _run: RunFolder, attempt: AttemptFolder, *, rules: Rulebook | None = None, word: JobRecord | None = None
) -> Diagnosis:
    """What ended this attempt, from all that its folder and the scheduler have of it.

    Never raises: what cannot be read is left out. The result of an attempt whose last word is known is kept in
    `diagnosis.json`, so that it is made once. `word`: what the scheduler just said of the job, where that is not kept.
    """
    kept = _kept(attempt)
    if kept is not None:
        return _as_decided(attempt, kept)
    book = rules if rules is not None else rulebook()
    evidence = gather(attempt, book, word)
    diagnosis = diagnose(evidence, book)
    if evidence.scheduler is not None and read_json(attempt.final) is not None:
        with suppress(OSError):
            told = {"version": __version__, "diagnosis": msgspec.to_builtins(diagnosis)}
            write_json(attempt.path / "diagnosis.json", told)
    return _as_decided(attempt, diagnosis)


def _as_decided(attempt: AttemptFolder, told: Diagnosis) -> Diagnosis:
    """With the nodes that the verdict on record blames, where the evidence has none: who decided could still see, in
    the states of the nodes, which one had gone."""
    verdict = decided_of(read_json(attempt.verdict))
    if verdict is None or told.bad_nodes or not verdict.blamed or verdict.failure_class != told.failure_class:
        return told
    blamed, first = verdict.blamed, told.first_failure
    if len(blamed) == 1 and first.node is None:
        first = msgspec.structs.replace(first, node=blamed[0])
    action = told.default_verdict if told.default_verdict == "STOP" else "RETRY_ELSEWHERE"
    return msgspec.structs.replace(told, bad_nodes=blamed, first_failure=first, default_verdict=action)


def gather(attempt: AttemptFolder, rules: Rulebook, word: JobRecord | None = None) -> Evidence:
    """All evidence of an attempt, as values."""
    files = Reader().read(attempt)
    record = record_of(files.final) or _asked(files) or word
    nodes = hosts.names(record.nodes if record else None) or hosts.names((files.end or files.start or {}).get("nodes"))
    cancel = files.cancel or {}
    end = _end(files)
    progress = ProgressReader().read(files, None)
    return Evidence(
        logs=tuple(scans(attempt, rules, nodes)),
        scheduler=_facts(record),
        end=end,
        node_exits=tuple(node_exits(attempt, nodes)),
        notes=tuple(notes(attempt, nodes)),
        nodes=nodes,
        cancelled_by=values.text(cancel.get("by")) or ("hpc-launch" if cancel else None),
        cancelled_at=values.seconds(cancel.get("time")),
        void=_void(files),
        unfinished=unfinished(files.end, progress),
        alive=end is None and record is None,
        of_a_run=True,
    )


def _facts(record: JobRecord | None) -> SchedulerFacts | None:
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


def _asked(files: AttemptFiles) -> JobRecord | None:
    """Accounting's word where the last one was not kept yet: it alone knows the steps. None where it is silent."""
    if files.job_id is None or not files.job_id.split("_")[0].isdecimal() or not _is_slurm(files):
        return None
    from hpc_launch.schedulers.slurm.parse_jobs import pick
    from hpc_launch.schedulers.slurm.query_jobs import from_sacct_by_id

    record = pick(files.job_id, from_sacct_by_id([files.job_id]))
    ended = record is not None and record.ended_for_good and record.ended is not None
    return record if ended else None


def _is_slurm(files: AttemptFiles) -> bool:
    info = read_json(files.attempt.path.parent.parent / "run.json") or {}
    return info.get("scheduler") == "slurm"


def _end(files: AttemptFiles) -> EndFacts | None:
    end = files.end or {}
    code = values.whole(end.get("exit_code"))
    if code is None:
        return None
    return EndFacts(
        exit_code=code,
        signal=values.text(end.get("signal")),
        phase=values.text(end.get("phase")),
        warned=values.flag(end.get("warned")),
        preempted=end.get("warned_by") == "TERM",
        lost_nodes=values.whole(end.get("lost_nodes")) or 0,
        ended=values.seconds(end.get("ended")),
    )


def _void(files: AttemptFiles) -> str | None:
    return None if files.void is None or files.void.startswith(CANCELLED) else files.void


def _kept(attempt: AttemptFolder) -> Diagnosis | None:
    data = read_json(attempt.path / "diagnosis.json")
    if data is None or data.get("version") != __version__:
        return None
    try:
        return msgspec.convert(data.get("diagnosis"), Diagnosis)
    except msgspec.ValidationError:
        return None
