"""Tell whether a command of the job's script that failed before its program, such as `module load`, is the cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from hpc_launch.diagnose.candidates import Candidate
from hpc_launch.diagnose.evidence import Evidence
from hpc_launch.diagnose.log_line import parse
from hpc_launch.diagnose.rulebook import Rulebook

_EXPLAINS = {
    "module_not_found": frozenset({"py_import", "step_executable_missing", "gpu_missing", "container_option_unknown"}),
    "import_error": frozenset({"py_import", "step_executable_missing"}),
    "config_error": frozenset({"py_import", "step_executable_missing"}),
}
"""The causes that may follow from the failure of such a command, by its class."""

_ENVIRONMENT = re.compile(r"activate|conda|mamba|\bpip\b|\buv\b|module|venv|\benv\b|python|profile|bashrc")
"""What a script needs for the packages of its program."""

_UTILITY = re.compile(
    r"(?:\S*(?:slurm_script|bash|\bsh|\.sh|\.slurm|\.sbatch): (?:line \d+: )?(?!\s*\d+ [A-Z]))?(?:/usr)?(?:/bin/)?"
    r"(?:cat|chgrp|chmod|chown|cp|curl|find|git|gzip|ln|ls|make|mkdir|mv|nvidia-smi|rm|rmdir|rsync|scp|scontrol|sed|source|"
    r"squeue|ssh|stat|tar|touch|ulimit|unzip|wget|wandb)(?:\(\d+\))?: "
    r"|\S*(?:slurm_script|bash|\.sh|\.slurm|\.sbatch): line \d+: (?!\s*\d+ [A-Z])"
)
"""Messages of the shell, of utilities and of trackers: the job continues after them."""

_SHORT_NAME = 3
_NAME = re.compile(r"[\w.+-]*[/.][\w./+-]{3,}")

_WENT_ON = "setup-went-on"
_SOON = 3
"""Lines after a failed command in which the same tool may report that it went on."""

_SYMPTOM = 60


def without_survived(
    solid: Sequence[Candidate], evidence: Evidence, rules: Rulebook
) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates that count, and the commands that the job survived."""
    went_on = {(scan.source, hit.line) for scan in evidence.logs for hit in scan.hits if hit.rule == _WENT_ON}
    past: list[Candidate] = []
    kept: list[Candidate] = []
    for one in solid:
        survived = _is_setup(one, rules) and _is_survived(
            one, [other for other in solid if _follows(other, one)], went_on, rules
        )
        (past if survived else kept).append(one)
    return kept, past


def _is_survived(
    setup: Candidate, later: Sequence[Candidate], went_on: AbstractSet[tuple[int, int]], rules: Rulebook
) -> bool:
    """Whether its tool went on, or what failed later cannot follow from it."""
    if any((setup.source, setup.line + lines) in went_on for lines in range(1, _SOON + 1)):
        return True
    programs = [one for one in later if not _is_setup(one, rules)] or sorted(later, key=lambda one: one.line)[-1:]
    return bool(programs) and not _explains(setup, min(programs, key=lambda one: (one.band, one.line)))


def _follows(one: Candidate, setup: Candidate) -> bool:
    return one.source == setup.source and one.line > setup.line and one.order < _SYMPTOM


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
