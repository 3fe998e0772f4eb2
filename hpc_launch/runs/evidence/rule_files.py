"""Load the failure rules: the shipped ones, those of the site or team, and the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpc_launch.base.files import read_text
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.diagnose.read_rules import parse_rules, shipped
from hpc_launch.diagnose.rulebook import Rulebook
from hpc_launch.job.yaml_source import MAX_BYTES
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
        for path in _files(folder)[: None if is_own else MAX_RULE_FILES]:
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


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.yaml"))
    except OSError:
        return []


def _report(findings: list[Finding] | None, path: Path, fault: str) -> None:
    if findings is not None:
        hint = "correct or remove it; the other rules are used"
        findings.append(
            Finding(FindingCode.INVALID_RULE, f"a rule cannot be used: {fault}", Place(str(path)), hint, "warning")
        )
