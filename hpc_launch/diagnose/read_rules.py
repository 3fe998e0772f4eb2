"""Read failure rules from YAML, and check those that do not come with hpc-launch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.patterns import compiled
from hpc_launch.diagnose.diagnosis import FAILURE_CLASSES
from hpc_launch.diagnose.regex_literals import needed_words
from hpc_launch.diagnose.rulebook import Cause, ClassFacts, FailureRule, Rulebook
from hpc_launch.job.yaml_source import parse_list

FOLDER = Path(__file__).resolve().parent / "rules"
"""The shipped rules."""
CAUSES = "causes.yaml"
CLASSES = "classes.yaml"

LONGEST_PATTERN = 2000
_RANK = re.compile(r"\(\?P<rank2?>[^)]*\)?")
_NUMBER = re.compile(r"\(\?P<rank2?>(?:\\d|\[0-9\])(?:\+|\{\d+(?:,\d+)?\})?\)")


def parse_rules(
    text: str, causes: Mapping[str, Cause], *, most: int | None = None
) -> tuple[list[FailureRule], list[str]]:
    """The rules in a YAML text, at most so many, and the errors of those that cannot be used, as text."""
    data, findings = parse_list(text, "rules")
    for finding in findings:
        line = finding.place.line if finding.place else 1
        what = finding.message.removeprefix("this is not YAML: ")
        return [], [
            "it must be a list of rules"
            if finding.code == FindingCode.NOT_ONE_MAPPING
            else f"not valid YAML: line {line}: {what}"
        ]
    rules: list[FailureRule] = []
    faults: list[str] = []
    if most is not None and len(data) > most:
        faults.append(f"there are more than {most} rules; the others are ignored")
    for number, item in enumerate(data[:most], 1):
        try:
            rule = msgspec.convert(item, FailureRule)
        except (msgspec.ValidationError, RecursionError) as error:
            faults.append(f"rule {number}: {_first_line(error)}")
            continue
        fault = _fault(rule, causes)
        if fault:
            faults.append(f"rule {rule.id}: {fault}")
        else:
            rules.append(rule)
    return rules, faults


def _fault(rule: FailureRule, causes: Mapping[str, Cause]) -> str | None:
    if rule.cause not in causes:
        return f"unknown cause {rule.cause!r}"
    if rule.failure_class is not None and rule.failure_class not in FAILURE_CLASSES:
        return f"unknown class {rule.failure_class!r}"
    for pattern in [*rule.patterns, *([rule.unless] if rule.unless else [])]:
        if len(pattern) > LONGEST_PATTERN:
            return "a pattern is too long"
        for group in _RANK.findall(pattern):
            if not _NUMBER.fullmatch(group):
                return rf"the group rank takes a number, as in (?P<rank>\d+), not {group}"
        try:
            compiled(pattern)
            words = needed_words(pattern)
        except re.error as error:
            return f"{pattern!r} is not a valid regular expression: {error}"
        if not words and pattern != rule.unless:
            return f"{pattern!r} needs a fixed word of at least 3 letters; otherwise every line would be tried"
    return None


def shipped() -> Rulebook:
    """The rules that come with hpc-launch. Raises FileNotFoundError for a broken install."""
    causes = _mapping(CAUSES, Cause)
    classes = _mapping(CLASSES, ClassFacts)
    rules: list[FailureRule] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name not in {CAUSES, CLASSES}:
            found = _loaded(path.read_text("utf-8"))
            rules += msgspec.convert(found, list[FailureRule])
    return Rulebook(rules, causes, classes)


def _mapping(name: str, kind: type[Any]) -> dict[str, Any]:
    data = _loaded((FOLDER / name).read_text("utf-8"))
    return cast("dict[str, Any]", msgspec.convert(data, dict[str, kind]))  # type: ignore[valid-type]


def _loaded(text: str) -> Any:
    """The YAML in `text`, with libyaml where available: ten times as fast. Both loaders create plain values only."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
