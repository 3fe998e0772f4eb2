"""Collect the evidence of an attempt and diagnose it, with the failure rules of the site, the team and the user."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import structs

from hpc_launch.base.files import read_text
from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.base.json_records import as_type, read_record
from hpc_launch.diagnose.diagnose import diagnose
from hpc_launch.diagnose.diagnosis import Diagnosis
from hpc_launch.diagnose.evidence import HEARTBEAT, EndFacts, Evidence, LogScan, NodeFault
from hpc_launch.diagnose.rulebook import Rulebook, parse_rules, shipped
from hpc_launch.diagnose.scan_log import LogScanner, scan
from hpc_launch.job.hostlist import names_or_text
from hpc_launch.job.yaml_source import MAX_BYTES
from hpc_launch.runs.artifacts import (
    CHUNK,
    bounded,
    node_exits,
    notes,
    read_chunks,
    scans,
    without_ordinary,
    without_other_jobs,
)
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.node_records import BAD_NODES, NodeCheckRecord
from hpc_launch.runs.records.plan_record import plan_of
from hpc_launch.runs.records.run_info import CodeInfo, read_info
from hpc_launch.runs.records.verdict_record import read_verdict, stored_diagnosis
from hpc_launch.runs.status.progress_reader import ProgressReader
from hpc_launch.runs.status.run_status import unfinished
from hpc_launch.runs.status.startup_summary import StartupReader
from hpc_launch.schedulers.scheduler import JobRecord
from hpc_launch.sites.search_path import search_path
from hpc_launch.sites.trust import is_trusted_text

MAX_RULES = 200
MAX_RULE_FILES = 50
MAX_RULES_BYTES = 256 << 10
"""Limits on the rules of each folder that is not the user's or the machine's own. Checking a rule takes time, too."""


def rulebook(findings: list[Finding] | None = None) -> Rulebook:
    """All rules; a later rule replaces an earlier one with the same id, and the user's come last.

    A rule of an untrusted file replaces none, and reports no node to others (`Rulebook.untrusted`). Invalid files and
    rules are left out and added to `findings`.
    """
    book = shipped()
    for folder, is_own in _folders():
        read = kept = 0
        files: list[Path] = []
        with suppress(OSError):
            files = sorted(folder.glob("*.yaml"))
        for path in files[: None if is_own else MAX_RULE_FILES]:
            try:
                text = read_text(path, longest=MAX_BYTES if is_own else MAX_RULES_BYTES - read)
            except (OSError, UnicodeDecodeError) as error:
                _report(findings, path, f"cannot be read: {error}")
                continue
            read += len(text)
            rules, faults = parse_rules(text, book.causes, most=None if is_own else MAX_RULES - kept)
            kept += len(rules)
            trusted = is_own or is_trusted_text(text)
            if not trusted:
                faults += [
                    f"rule {rule.id}: an untrusted file cannot replace it" for rule in rules if rule.id in book.rules
                ]
                rules = [rule for rule in rules if rule.id not in book.rules]
            for fault in faults:
                _report(findings, path, fault)
            book = book.extended(rules, trusted=trusted)
    return book


def _folders() -> Iterator[tuple[Path, bool]]:
    """The folders `rules` next to the site profiles: the machine's, the teams', the user's. With whether they are the
    machine's or the user's."""
    order = {"machine": 0, "shared": 1, "team": 2, "HPC_LAUNCH_SITE_PATH": 3, "user": 4}
    layers = [(layer.split()[0], folder) for layer, folder in search_path()]
    found = [(order[layer], layer, folder) for layer, folder in layers if layer in order]
    for _, layer, folder in sorted(found, key=lambda entry: entry[0]):
        is_own = layer in ("machine", "user")
        yield (folder.parent if is_own else folder) / "rules", is_own


def _report(findings: list[Finding] | None, path: Path, fault: str) -> None:
    if findings is not None:
        hint = "correct or remove it; the other rules are used"
        findings.append(
            Finding(FindingCode.INVALID_RULE, f"a rule cannot be used: {fault}", Place(str(path)), hint, "warning")
        )


STDIN = "-"

SILENT = "its watcher fell silent while others did not, and srun could start nothing there"


def diagnose_attempt(attempt: AttemptFolder, rules: Rulebook | None = None) -> Diagnosis:
    """The diagnosis of an attempt: the one that its verdict is based on, else from all its records and logs.

    Never raises: unreadable files are left out.
    """
    verdict = read_verdict(attempt)
    stored = stored_diagnosis(verdict) if verdict is not None else None
    if stored is not None:
        return stored
    book = rules if rules is not None else rulebook()
    return with_role(with_original(diagnose(gather(attempt, book), book), attempt.run), attempt)


def with_role(diagnosis: Diagnosis, attempt: AttemptFolder) -> Diagnosis:
    """The diagnosis of a job with roles, with the role that failed first and its node, or the one on a lost node."""
    states, first = Reader().read(attempt).roles, diagnosis.first_failure
    if states is None or diagnosis.failure_class == "success":
        return diagnosis
    failed = states.failed
    if failed is None and diagnosis.failure_class != "node_failure":
        return diagnosis  # all roles were ended with the job
    if failed is None:
        names = [one.name for one in states.roles if first.node in one.nodes]
        alone = structs.replace(first, role=names[0]) if len(names) == 1 else first
        return structs.replace(diagnosis, first_failure=alone)
    first = structs.replace(first, role=failed.name, node=first.node or failed.node, exit_code=failed.exit_code)
    also = (f"role {failed.name}: {failed.why}", *diagnosis.also)
    return structs.replace(diagnosis, first_failure=first, also=also)


_MISSING = re.compile(r"No module named '?([A-Za-z_]\w*)|cannot import name '\w+' from '([A-Za-z_]\w*)")
"""Python's ImportError (Lib/importlib/_bootstrap.py)."""


def with_original(diagnosis: Diagnosis, run: RunFolder) -> Diagnosis:
    """The diagnosis of a failed import with the place of the module, if it lies beside the original of the code.

    It is searched in the copied folder and the two above: a program may import from there, too.
    """
    info = read_record(run.code_info, CodeInfo) if diagnosis.failure_class == "import_error" else None
    if info is None or not info.kept:
        return diagnosis
    names = [match[1] or match[2] for quote in diagnosis.evidence for match in _MISSING.finditer(quote.text)]
    root = Path(info.root)
    folders = [root, *list(root.parents)[:2]]
    for path in (folder / file for folder in folders for name in names for file in (f"{name}.py", name)):
        copied = os.path.exists(run.code / os.path.relpath(path, root))
        if not copied and (os.path.isfile(path) or next(path.glob("*.py"), None) is not None):
            where = f"`{path.stem}` is in {path}, beside the original of the code, but not in the run's copy of {root}"
            advice = f"{where}: put the job file or a git work tree above both, or set `code: off` to run the original"
            return structs.replace(diagnosis, advice=advice)
    return diagnosis


def gather(attempt: AttemptFolder, rules: Rulebook, word: JobRecord | None = None) -> Evidence:
    """Collect the evidence of an attempt; in a job with roles, of the one that failed first, else that ends the job."""
    files = Reader().read(attempt)
    roles = files.roles
    failed = roles.failed if roles is not None else None
    place, own = attempt, files
    if roles is not None:
        place = attempt.role(failed.name if failed is not None else "main")
        own = Reader().read(place)
    # Of a job that never began, or whose steps the driver has already, the accounting knows no more.
    known = word is not None and word.ended_for_good and (bool(word.steps) or files.claim is None)
    record = files.final or (word if known else _from_accounting(files) or word)
    nodes = own.nodes or names_or_text(record.nodes if record else None)  # the job may hold more, or have lost one
    if roles is not None and failed is None:  # any node of the job may have ended it
        nodes = tuple(dict.fromkeys([*nodes, *files.nodes]))
    ended = own.own_end or files.own_end
    end = as_type(ended, EndFacts, from_attributes=True) if ended is not None else None
    cancel = files.cancel
    start = StartupReader().read(files)
    job_id = files.job_id if files.job_id is not None and files.job_id.isdecimal() else None
    return Evidence(
        logs=tuple(without_ordinary(without_other_jobs(scans(place, rules, nodes), job_id), place, rules)),
        scheduler=record,
        end=end,
        role=failed,
        began=files.start is not None,
        node_exits=tuple(node_exits(place, nodes)),
        notes=tuple(notes(place, nodes)),
        node_faults=tuple(_node_faults(files)),
        nodes=nodes,
        cancelled_by=(cancel.by or "hpc-launch") if cancel is not None else None,
        cancelled_at=cancel.time if cancel is not None else None,
        void=files.void,
        unfinished=unfinished(files.own_end, ProgressReader().read(files)),
        alive=end is None and record is None,
        start=start.text() if start is not None else None,
        of_a_run=True,
    )


def _node_faults(files: AttemptFiles) -> Iterator[NodeFault]:
    """The nodes that failed the node check, if the job ended for that, so before the training could write anything.

    Else those that fell silent while it ran.
    """
    end, record = files.own_end, read_record(files.attempt.node_check, NodeCheckRecord)
    if end is None:
        return
    if (end.phase, end.exit_code) == ("check", BAD_NODES):
        if record is not None and record.job_id == files.job_id:
            yield from (NodeFault(one.node, one.check, one.text) for one in record.bad if one.node is not None)
    elif end.exit_code and (plan := plan_of(files.attempt)) is not None and plan.chooses_nodes:
        with suppress(OSError):
            lost = read_text(files.attempt.lost, errors="replace").split()
            yield from (NodeFault(one, HEARTBEAT, SILENT, "agent/lost") for one in files.nodes if one in lost)


def diagnose_files(names: Sequence[str], rules: Rulebook, stdin: BinaryIO) -> Diagnosis:
    """Diagnose a job by its log files alone; `-` is `stdin`. Raises OSError for a file that cannot be read."""
    scanned = [_scan_file(name, number, rules, stdin) for number, name in enumerate(names)]
    return diagnose(Evidence(logs=tuple(scanned)), rules)


def _scan_file(name: str, number: int, rules: Rulebook, stdin: BinaryIO) -> LogScan:
    try:
        if name == STDIN:
            return scan(rules, "stdin", bounded(iter(lambda: stdin.read(CHUNK), b"")), source=number)
        return read_chunks(Path(name), LogScanner(rules, name, source=number), wait=True)
    except OSError as error:
        # Python names the file of a failed open, but not of a failed read.
        raise OSError(error.errno, error.strerror, name) from error


def _from_accounting(files: AttemptFiles) -> JobRecord | None:
    """The final state by sacct, which alone knows the steps, where it is not on record yet; None without an answer."""
    info = read_info(files.attempt.run)
    if files.job_id is None or not files.job_id.split("_")[0].isdecimal() or info is None or info.scheduler != "slurm":
        return None
    from hpc_launch.schedulers.slurm.parse_jobs import pick
    from hpc_launch.schedulers.slurm.run_command import on_cluster
    from hpc_launch.schedulers.slurm.slurm_scheduler import from_sacct_by_id

    with on_cluster(info.cluster):
        record = pick(files.job_id, from_sacct_by_id([files.job_id]))
    if record is None or not record.ended_for_good or record.ended is None:
        return None
    following = Reader().read(files.attempt.run.attempt(files.attempt.number + 1))
    return None if following.same_start(files) else files.concerns(record)  # the job's end is that of the next attempt
