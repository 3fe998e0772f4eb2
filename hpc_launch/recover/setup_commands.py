"""Tell whether a command of the job's script that failed before its program, such as `module load`, is the cause."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from hpc_launch.recover.candidates import Candidate
from hpc_launch.recover.evidence import Evidence
from hpc_launch.recover.rulebook import Rulebook

_EXPLAINS = {
    "module_not_found": frozenset({"py_import", "step_executable_missing", "gpu_missing", "container_option_unknown"}),
    "import_error": frozenset({"py_import", "step_executable_missing"}),
    "config_error": frozenset({"py_import", "step_executable_missing", "py_file_not_found"}),
}
"""The causes that may follow from the failure of such a command, by its class."""

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
        later = [other for other in solid if _is_later(other, one, rules)] if _is_setup(one, rules) else []
        (past if later and _is_survived(one, later, went_on) else kept).append(one)
    return kept, past


def _is_survived(setup: Candidate, later: Sequence[Candidate], went_on: AbstractSet[tuple[int, int]]) -> bool:
    """Whether its tool went on, or what failed later cannot follow from it."""
    if any((setup.source, setup.line + lines) in went_on for lines in range(1, _SOON + 1)):
        return True
    return min(later, key=lambda one: (one.band, one.line)).cause not in _EXPLAINS.get(setup.failure_class, ())


def _is_later(one: Candidate, setup: Candidate, rules: Rulebook) -> bool:
    """Whether a program failed after the command."""
    after = one.source == setup.source and one.line > setup.line
    return after and one.order < _SYMPTOM and not _is_setup(one, rules)


def _is_setup(candidate: Candidate, rules: Rulebook) -> bool:
    return candidate.rule in rules.rules and rules.rules[candidate.rule].role == "setup"
