"""Failure rules as the YAML files hold them, and the rule book that matches log lines against them, searched fast.

Read failure rules from YAML, and check those that do not come with hpc-launch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Literal

import msgspec
from msgspec import Struct

from hpc_launch.base.findings import FindingCode
from hpc_launch.base.json_records import as_type
from hpc_launch.base.patterns import compiled
from hpc_launch.diagnose.diagnosis import FAILURE_CLASSES, Action, Level
from hpc_launch.diagnose.log_line import FOLDER, read_rules, with_errno_message, with_gpu_message
from hpc_launch.diagnose.regex_literals import needed_words
from hpc_launch.job.yaml_source import parse_list

Role = Literal["root", "setup", "confirm", "cascade", "context"]
Mark = Literal["last", "failed", "ends_others", "bystander", "by_owner"]


class FailureRule(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of line."""

    id: str
    cause: str
    match: str | list[str]
    """Regular expressions, searched in the line without colours and rank prefix. Groups:
    `node` (who is at fault), `index` (its number in the job), `at` (a node that is only mentioned), `rank`, `peer` (an
    address), `how` (how a process ended: a code, or the name of a signal; meanings.py knows what it means)."""
    examples: list[str]
    """Lines that must match; the tests run them."""
    source: str
    """Where the wording comes from: a program and its file, or a document."""
    marks: frozenset[Mark] = frozenset()
    """What its lines show beyond the cause. `last`: they end a job, whatever is printed after them. `failed`: a
    launcher failed. `ends_others`: after them a launcher ends the processes that are left. `bystander`: after those,
    it ended a process. `by_owner`: the code that raised the exception tells what it means (meanings.py)."""
    role: Role = "root"
    """`setup`: a command of the job's script before its program, after whose failure the script continues."""
    order: int = 20
    """Lower is nearer to the root: 10 nothing else causes it, 20 a clear cause, 30 a likely one, 40 the program's own
    exception, 50 a consequence of the end of another process, 60 a bare exit code."""
    failure_class: str | None = msgspec.field(default=None, name="class")
    """Where it differs from the class of the cause."""
    code: int | None = None
    """How a process ended, where each of its lines reports that without a group `how`: -N for signal N."""
    verdict: Action | None = None
    """Where it differs from the default of the class."""
    at_start: Action | None = None
    """The verdict where no training step was seen yet: the setup is probably wrong."""
    advice: str = ""
    unless: str = ""
    """A match does not count if this matches in it, near it, or at the beginning of the line."""
    firm: bool = False
    """Counts even in a line that is marked as a warning."""
    counters: list[str] = []
    """Lines that must not match; the tests run them."""

    @property
    def patterns(self) -> list[str]:
        """All its expressions."""
        return [self.match] if isinstance(self.match, str) else self.match


class Cause(Struct, frozen=True, forbid_unknown_fields=True):
    """A cause, and the class that it belongs to."""

    failure_class: str = msgspec.field(name="class")
    means: str


class ClassFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """What a failure class means, the default verdict, and what a person does."""

    title: str
    level: Level
    means: str
    verdict: Action
    does: str
    advice: str
    you: str


DIGITS = b"0123456789"

LANDMARKS = (
    "traceback (", 'file "', "root cause (first", "failures:", "exitcode", "restart", "slurm_job", "starting job",
    "job start", "cancelled at", "exception ignored in",
)  # fmt: skip
"""Words of lines that matter although no rule matches them."""

Search = Callable[[bytes], Iterable[tuple[int, int]]]
"""Takes lower-case text without digits; returns the words in it, by number, and where they begin, in this order."""


def word_search(words: Sequence[bytes]) -> Search:
    """The search for all of these words, which may overlap."""
    try:
        from ahocorasick_rs import BytesAhoCorasick, Implementation
    except ImportError:  # no build for this machine
        return lambda text: sorted(
            ((number, at.start()) for number, word in enumerate(words) for at in re.finditer(re.escape(word), text)),
            key=lambda found: found[1],
        )
    automaton = BytesAhoCorasick(words, implementation=Implementation.DFA)
    return lambda text: [(number, at) for number, at, _ in automaton.find_matches_as_indexes(text, overlapping=True)]


NEAR = 160
"""Characters around a match in which `unless` is searched."""
WRITER = 40
"""Characters at the beginning of a line that may name the program that wrote it."""


class Compiled:
    """A rule with its expressions, compiled when a line may match for the first time."""

    __slots__ = ("_compile", "_expressions", "_unless", "rule")

    def __init__(self, rule: FailureRule, *, foreign: bool = False) -> None:
        self.rule = rule
        self._compile = compiled if foreign else re.compile
        self._expressions: list[re.Pattern[str]] | None = None
        self._unless: re.Pattern[str] | None = None

    def search(self, text: str, which: Iterable[int] | None = None) -> re.Match[str] | None:
        """The first match in `text` of the expressions with the numbers `which`, by default of all."""
        if self._expressions is None:
            self._expressions = [self._compile(pattern) for pattern in self.rule.patterns]
            self._unless = self._compile(self.rule.unless) if self.rule.unless else None
        for number in range(len(self._expressions)) if which is None else which:
            if match := self._expressions[number].search(text):
                return None if self._excluded(text, match) else match
        return None

    def _excluded(self, text: str, match: re.Match[str]) -> bool:
        """Whether `unless` matches near the match, or where the line names its writer."""
        if self._unless is None:
            return False
        begin, end = max(0, match.start() - NEAR), match.end() + NEAR
        return bool(self._unless.search(text, 0, WRITER) or self._unless.search(text, begin, end))


class Rulebook:
    """All rules in order, the causes and the classes."""

    def __init__(
        self,
        rules: Iterable[FailureRule],
        causes: Mapping[str, Cause],
        classes: Mapping[str, ClassFacts],
        foreign: frozenset[str] = frozenset(),
        untrusted: frozenset[str] = frozenset(),
    ) -> None:
        self.rules = {rule.id: rule for rule in rules}
        self.foreign = foreign
        """Rules of the user and of teams."""
        self.untrusted = untrusted
        """Rules that may say what a line means, but not that it proves something about a node."""
        self.causes = causes
        self.classes = classes
        self.searched = 0
        """How many characters were searched in `matches`, once for each expression."""

    def class_of(self, rule: FailureRule) -> str:
        """The failure class of a rule."""
        return rule.failure_class or self.causes[rule.cause].failure_class

    @cached_property
    def table(self) -> dict[str, tuple[tuple[Compiled, int], ...]]:
        """Words, each with the expressions (by rule and number) that match only lines with one of their words."""
        by_word: dict[str, list[tuple[Compiled, int]]] = {word: [] for word in LANDMARKS}
        for rule in self.rules.values():
            compiled = Compiled(rule, foreign=rule.id in self.foreign)
            for number, pattern in enumerate(rule.patterns):
                for word in needed_words(pattern):
                    by_word.setdefault(word, []).append((compiled, number))
        return {word: tuple(expressions) for word, expressions in by_word.items()}

    @cached_property
    def words_in(self) -> Search:
        """The search for the words of rules; a line without any matches no rule. The first are LANDMARKS."""
        return word_search([word.encode() for word in self.table])

    @cached_property
    def _expressions(self) -> list[tuple[tuple[Compiled, int], ...]]:
        return list(self.table.values())

    def matches(self, text: str) -> list[tuple[FailureRule, re.Match[str]]]:
        """All rules that match `text`, each with its match, by order."""
        text = with_gpu_message(with_errno_message(text))
        tried: dict[str, tuple[Compiled, set[int]]] = {}
        words = self.words_in(text.lower().encode("utf-8", "replace").translate(None, DIGITS))
        for word in {word for word, _ in words}:
            for candidate, number in self._expressions[word]:
                tried.setdefault(candidate.rule.id, (candidate, set()))[1].add(number)
        found: list[tuple[FailureRule, re.Match[str]]] = []
        for candidate, numbers in tried.values():
            self.searched += len(text) * len(numbers)
            if match := candidate.search(text, sorted(numbers)):
                found.append((candidate.rule, match))
        found.sort(key=lambda pair: (pair[0].order, self._number[pair[0].id]))
        return found

    @cached_property
    def _number(self) -> dict[str, int]:
        return {rule: number for number, rule in enumerate(self.rules)}

    def extended(self, more: Iterable[FailureRule], *, trusted: bool = True) -> Rulebook:
        """A rulebook with more rules, of the user or a team; one with the same id replaces."""
        others = {rule.id: rule for rule in more}
        foreign = self.foreign.union(others)
        untrusted = self.untrusted.difference(others) if trusted else self.untrusted.union(others)
        return Rulebook({**self.rules, **others}.values(), self.causes, self.classes, foreign, untrusted)


CAUSES = "causes.yaml"
CLASSES = "classes.yaml"

LONGEST_PATTERN = 2000
_RANK = re.compile(r"\(\?P<(?:rank2?|local)>[^)]*\)?")
_NUMBER = re.compile(r"\(\?P<\w+>(?:\\d|\[0-9\])(?:\+|\{\d+(?:,\d+)?\})?\)")


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
            rule = as_type(item, FailureRule)
        except (msgspec.ValidationError, RecursionError) as error:
            faults.append(f"rule {number}: {(str(error).splitlines() or [type(error).__name__])[0]}")
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


@cache
def shipped() -> Rulebook:
    """The rules that come with hpc-launch. Raises FileNotFoundError for a broken install."""
    names = sorted(path.name for path in FOLDER.glob("*.yaml"))
    rules = [rule for name in names if name not in (CAUSES, CLASSES) for rule in read_rules(name, list[FailureRule])]
    return Rulebook(rules, read_rules(CAUSES, dict[str, Cause]), read_rules(CLASSES, dict[str, ClassFacts]))
