"""Find possible root causes in log lines, and decide which of them count: a job may survive a failed command, such as
`module load`, before its program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from hpc_launch.diagnose import meanings
from hpc_launch.diagnose.diagnosis import SYMPTOM, Candidate, Quote
from hpc_launch.diagnose.evidence import EndFacts, Evidence, Hit, LogScan
from hpc_launch.diagnose.log_line import line_pattern, parse
from hpc_launch.diagnose.rulebook import FailureRule, Rulebook

_EXPLAINS = {
    "module_not_found": frozenset({"py_import", "step_executable_missing", "gpu_missing", "container_option_unknown"}),
    "import_error": frozenset({"py_import", "step_executable_missing"}),
    "config_error": frozenset({"py_import", "step_executable_missing"}),
}
"""The causes that may follow from the failure of such a command, by its class."""

_ENVIRONMENT = re.compile(r"activate|conda|mamba|\bpip\b|\buv\b|module|venv|\benv\b|python|profile|bashrc")
"""What a script needs for the packages of its program."""

_UTILITY = line_pattern("utility")
"""Messages of the shell, of utilities and of trackers: the job continues after them."""

_SHORT_NAME = 3
_NAME = re.compile(r"[\w.+-]*[/.][\w./+-]{3,}")

_WENT_ON = "setup-went-on"
_SOON = 3
"""Lines after a failed command in which the same tool may report that it went on."""


def without_survived(
    solid: Sequence[Candidate], evidence: Evidence, rules: Rulebook
) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates that count, and the commands that the job survived."""
    went_on = {(scan.source, hit.line) for scan in evidence.logs for hit in scan.hits if hit.rule == _WENT_ON}
    past: list[Candidate] = []
    kept: list[Candidate] = []
    for one in solid:
        after = [other for other in solid if other.source == one.source and other.line > one.line]
        later = [other for other in after if other.order < SYMPTOM]
        (past if _is_setup(one, rules) and _is_survived(one, later, went_on, rules) else kept).append(one)
    return kept, past


def _is_survived(
    setup: Candidate, later: Sequence[Candidate], went_on: AbstractSet[tuple[int, int]], rules: Rulebook
) -> bool:
    """Whether its tool went on, or what failed later cannot follow from it."""
    if any((setup.source, setup.line + lines) in went_on for lines in range(1, _SOON + 1)):
        return True
    programs = [one for one in later if not _is_setup(one, rules)] or sorted(later, key=lambda one: one.line)[-1:]
    return bool(programs) and not _explains(setup, min(programs, key=lambda one: (one.band, one.line)))


def _explains(setup: Candidate, later: Candidate) -> bool:
    if setup.failure_class == later.failure_class:
        return True
    text = _text(setup)
    if later.cause in _EXPLAINS.get(setup.failure_class, ()):
        return setup.failure_class != "config_error" or _ENVIRONMENT.search(text) is not None
    names = {name.rsplit("/", 1)[-1] for name in _NAME.findall(text)}
    return any(len(name) > _SHORT_NAME and name in _text(later) for name in names)


def _is_setup(candidate: Candidate, rules: Rulebook) -> bool:
    rule = rules.rules.get(candidate.rule)
    return rule is not None and (rule.role == "setup" or _UTILITY.match(parse(_text(candidate)).body) is not None)


def _text(candidate: Candidate) -> str:
    return candidate.quotes[-1].text if candidate.quotes else ""


BATCH_LOG = "batch.log"
"""The log of a run that the training does not write to: Slurm's own messages are there."""
_BY_SLURM = re.compile(r"(?:slurmstepd|slurmd|srun)(?:-\S+|\[\S+\])?: |\[20\d\d-\d\d-\d\dT[\d:.]{8,15}\] error: ")
"""How the lines of Slurm's programs begin; slurmstepd of 26.05 writes the time instead of its name."""
_NOTE = re.compile(r"\[hpc-launch 20\d\d-\d\d-\d\d [\d:]{8}\] (?:skipped|resuming from) ")
"""Notes of the job's script about checkpoints, not about why the training failed."""
FAN_OUT = "hpc-launch, agent/fan_out.py"
"""The source of rules for what the first host writes about the others, where ssh starts them."""
_BY_FAN_OUT = line_pattern("by_fan_out")
"""How its lines begin. They end with words of the host, in which no other rule may see a cause."""

WENT_ON = 3
"""So many later training steps show that the program recovered from an error."""

QUOTED = 10
"""A log of at most so many lines is an excerpt: a single NaN in it counts."""

ENDED_BY_OTHERS = 69
"""The order of a task that srun or a launcher ended, by SIGTERM or SIGKILL, because another one had failed."""


def from_logs(evidence: Evidence, rules: Rulebook) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates from log lines: those that count, and those that the program survived or only warned about."""
    solid: list[Candidate] = []
    faint: list[Candidate] = []
    # With torchrun or DeepSpeed, a Slurm task is a launcher, not a rank.
    tasks_are_ranks = not evidence.of_a_run or any(scan.rank is not None for scan in evidence.logs)
    state = evidence.scheduler.state.split()[:1] if evidence.scheduler is not None else []
    ended_badly = evidence.end is not None and evidence.end.exit_code != 0
    ended_badly = ended_badly or state not in ([], ["COMPLETED"], ["RUNNING"], ["COMPLETING"])
    for scan in evidence.logs:
        in_rank_log = evidence.of_a_run and scan.name != BATCH_LOG
        ends = (hit for hit in scan.hits if "ends_others" in rules.rules[hit.rule].marks)
        killed_from = min((hit.line for hit in ends if not hit.earlier), default=1 << 40)
        said = (hit for hit in scan.hits if "failed" in rules.rules[hit.rule].marks or hit.code is not None)
        failed_last = max((hit.line for hit in said if not hit.earlier), default=0)
        for hit in scan.hits:
            rule = rules.rules[hit.rule]
            by_slurm = _BY_SLURM.match(hit.text) is not None
            if rule.role == "context" or (in_rank_log and not by_slurm and rule.source.startswith("Slurm")):
                continue
            if scan.name == BATCH_LOG and _NOTE.match(hit.text):
                continue
            if (rule.source == FAN_OUT and in_rank_log) or (rule.source != FAN_OUT and _BY_FAN_OUT.match(hit.text)):
                continue
            if in_rank_log and is_denied(rules.class_of(rule), evidence.end):
                continue
            candidate = of_hit(hit, rule, rules, evidence)
            if evidence.of_a_run:
                proof = by_slurm and not in_rank_log and hit.rule not in rules.untrusted
                # What the training prints about Slurm's nodes blames none of them.
                unnamed = in_rank_log and candidate.failure_class == "node_failure"
                candidate = replace(candidate, by_slurm=proof, blames=None if unnamed else candidate.blames)
            if not tasks_are_ranks and hit.rule.startswith("slurm-task"):
                candidate = replace(candidate, rank=None)
            survived = rule.order >= 15 and "last" not in rule.marks and hit.later_progress >= WENT_ON
            reached = scan.last_progress_line if scan.complete else 0
            well = (hit.later_success or reached > hit.line) and not ended_badly
            done = well and failed_last <= max(scan.success_line, reached)
            is_end = "bystander" in rule.marks or (
                hit.code is not None and (hit.code > 0 or hit.code in (meanings.KILL, meanings.TERMINATED))
            )
            if is_end and killed_from < hit.line:
                candidate = replace(candidate, order=ENDED_BY_OTHERS)
            after = rule.order >= 50 and 0 < scan.success_line < hit.line and not ended_badly
            after = after and failed_last <= scan.success_line
            if hit.faint or hit.earlier or survived or after or (done and rule.order >= 15):
                faint.append(candidate)
            else:
                solid.append(candidate)
        solid += _of_numbers(scan)
    solid, past = without_survived(solid, evidence, rules)
    return solid + _cancelled_step(evidence, rules), faint + past


def is_denied(failure_class: str, end: EndFacts | None) -> bool:
    """Whether the record of the job's script shows that a line in the log of a rank is not true.

    The script lived on, so Slurm would have reported a lost node in the batch log. The script gets the signals of a
    preemption and of a time limit too.
    """
    if end is None:
        return False
    return failure_class == "node_failure" or (
        failure_class in ("preempted", "time_limit") and not (end.signal or end.warned)
    )


def _cancelled_step(evidence: Evidence, rules: Rulebook) -> list[Candidate]:
    """A step that somebody cancelled (`scancel JOB.STEP`).

    srun then aborts the step before it reports any task, and slurmstepd gives no reason (seen with 22.05). Where srun
    itself ends a step, it first reports the task or the node that failed.
    """
    hits = [hit for scan in evidence.logs for hit in scan.hits]  # the batch log comes first
    end = next((hit for hit in hits if hit.rule == "slurm-step-cancelled"), None)
    said = (hit for hit in hits if _BY_SLURM.match(hit.text) and rules.rules[hit.rule].source.startswith("Slurm"))
    first = next((hit for hit in said if hit.rule != "slurm-step-cancelled"), None)
    if not evidence.of_a_run or end is None or first is None or "Job step aborted: Waiting" not in first.text:
        return []
    quotes = tuple(Quote(hit.file, hit.line, hit.text) for hit in (end, first))
    return [Candidate("cancelled_by_user", "cancelled", 30, quotes, source=first.source, line=first.line)]


def of_hit(hit: Hit, rule: FailureRule, rules: Rulebook, evidence: Evidence) -> Candidate:
    """The candidate that a hit stands for, by its rule or by the code that raised the exception."""
    quotes = [Quote(hit.file, hit.line, hit.text)]
    if hit.frame:
        quotes.insert(0, Quote(hit.file, hit.frame_line, hit.frame))
    blames = hit.blames
    if hit.node_index is not None and hit.node_index < len(evidence.nodes):
        blames = evidence.nodes[hit.node_index]
    failure_class, cause, order = rules.class_of(rule), rule.cause, rule.order
    owned = hit.owner if "by_owner" in rule.marks else ""
    if (rule.id == "checkpoint-misfit" and not hit.text.endswith("'")) or owned == failure_class:
        owned = ""
    if owned:
        failure_class, cause, order = owned, meanings.cause_of(owned), min(order, 39)
    verdict, advice = rule.verdict, rule.advice
    if hit.code is not None:
        memory = counted(hit.rank, hit.node, evidence)
        if memory is None and rule.id == "slurm-task-signal":  # srun calls a kill for lack of memory by its name
            memory = False
        ended = meanings.meaning(hit.code, memory)
        failure_class, order = ended.failure_class, max(order, ended.order)
        cause, verdict = ended.cause or cause, ended.verdict or verdict
        advice = ended.advice if hit.code < 0 else advice or ended.advice
    return Candidate(
        failure_class=failure_class,
        cause=cause,
        order=order,
        quotes=tuple(quotes),
        node=hit.node,
        rank=hit.rank,
        time=hit.time,
        timed=hit.timed,
        blames=blames,
        peer=hit.peer,
        verdict=None if owned else verdict,
        at_start=rule.at_start,
        advice="" if owned else advice,
        code=hit.code,
        source=hit.source,
        line=hit.line,
        rule=rule.id,
    )


def counted(rank: int | None, node: str | None, evidence: Evidence) -> bool | None:
    """Whether a kill for lack of memory was counted, where a process ended; None if nobody counted."""
    ends = [note for note in evidence.notes if note.kind in ("death", "spared", "oom_kill")]
    here = node if node in evidence.nodes else None  # torchrun may know its host by another name
    mine = [note for note in ends if note.rank == rank] or [note for note in ends if here in (None, note.node)]
    if any(note.kind == "oom_kill" for note in mine):
        return True
    seen = any(note.kind == "spared" or note.signal == 9 or note.oom_kill is not None for note in mine)
    steps = evidence.scheduler is not None and evidence.scheduler.steps
    return False if seen or steps else None


def _of_numbers(scan: LogScan) -> list[Candidate]:
    """Candidates that no single line shows: a loss that stays NaN, a log that only repeats itself."""
    found: list[Candidate] = []
    if scan.nan_run >= WENT_ON or (scan.nan_run and scan.lines <= QUOTED):
        quotes = (Quote(scan.name, scan.nan_line, scan.nan_text),)
        found.append(Candidate("loss_nan", "numeric_divergence", 19, quotes, scan.node, scan.rank, rule="loss"))
    if scan.idle_s:
        quotes = (Quote(scan.name, scan.idle_line, scan.idle_text),)
        found.append(Candidate("hang_no_progress", "unknown", 48, quotes, rule="idle"))
    return [replace(one, source=scan.source, line=one.quotes[0].line) for one in found]
