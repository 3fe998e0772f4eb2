"""The rules that match log lines, searched fast."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from hpc_launch.base.patterns import compiled
from hpc_launch.diagnose.errno_message import with_errno_message
from hpc_launch.diagnose.failure_rule import Cause, ClassFacts, FailureRule
from hpc_launch.diagnose.gpu_error_names import with_gpu_message
from hpc_launch.diagnose.regex_literals import needed_words, smallest
from hpc_launch.diagnose.word_search import words_in

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
    def table(self) -> list[tuple[str, tuple[tuple[Compiled, int], ...]]]:
        """Words, each with the expressions (by rule and number) that match only lines with one of their words."""
        by_word: dict[str, list[tuple[Compiled, int]]] = {}
        for rule in self.rules.values():
            compiled = Compiled(rule, foreign=rule.id in self.foreign)
            for number, pattern in enumerate(rule.patterns):
                for word in needed_words(pattern):
                    by_word.setdefault(word, []).append((compiled, number))
        return [(word, tuple(expressions)) for word, expressions in by_word.items()]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The shortest list of words such that a line without any of them matches no rule."""
        return tuple(smallest(word for word, _ in self.table))

    @cached_property
    def _words_in(self) -> Callable[[str], Iterable[int]]:
        return words_in([word for word, _ in self.table])

    def words_of(self, low: str) -> Iterable[int]:
        """The numbers of the words of rules in a lower-case line; a line without any matches no rule."""
        return self._words_in(low)

    def matches(self, text: str) -> list[tuple[FailureRule, re.Match[str]]]:
        """All rules that match `text`, each with its match, by order."""
        text = with_gpu_message(with_errno_message(text))
        tried: dict[str, tuple[Compiled, set[int]]] = {}
        for word in self._words_in(text.lower()):
            for candidate, number in self.table[word][1]:
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
