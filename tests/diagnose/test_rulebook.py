"""The rules as data: each knows its own examples, all causes have a class, and no line takes long."""

from __future__ import annotations

import random
import re
import time

import pytest

from hpc_launch.diagnose import rulebook
from hpc_launch.diagnose.diagnosis import FAILURE_CLASSES
from hpc_launch.diagnose.log_line import FOLDER, LONGEST
from hpc_launch.diagnose.regex_literals import needed_words
from hpc_launch.diagnose.rulebook import Compiled, FailureRule, parse_rules
from tests.diagnose.logs import BOOK, BY_CLASS

CAUSES = 97
"""How many finer causes there are: one more or less is a change of what scripts may rely on."""


@pytest.mark.parametrize("rule", BOOK.rules.values(), ids=lambda rule: rule.id)
def test_a_rule_knows_its_examples(rule: FailureRule) -> None:
    assert rule.examples
    for example in rule.examples:
        assert rule.id in {found.id for found, _ in BOOK.matches(example)}, example
    for line in rule.counters:
        assert rule.id not in {found.id for found, _ in BOOK.matches(line)}, line


def test_every_pattern_of_a_rule_is_shown_by_an_example() -> None:
    """So that a pattern that can never match is noticed. Lists of patterns only: alternatives are the reader's."""
    silent = [
        (rule.id, pattern)
        for rule in BOOK.rules.values()
        if len(rule.patterns) > 1
        for pattern in rule.patterns
        if not any(re.search(pattern, example) for example in rule.examples)
    ]
    assert not silent


def test_causes_and_classes_are_complete() -> None:
    assert len(BOOK.causes) == CAUSES
    assert {cause.failure_class for cause in BOOK.causes.values()} <= set(FAILURE_CLASSES)
    assert set(BOOK.classes) == set(FAILURE_CLASSES)
    assert {rule.cause for rule in BOOK.rules.values()} <= set(BOOK.causes)


def test_a_class_that_can_be_found_has_a_rule() -> None:
    found = {BOOK.class_of(rule) for rule in BOOK.rules.values()}
    assert found == set(FAILURE_CLASSES) - {"success"}


def test_default_verdicts() -> None:
    assert {name: facts.verdict for name, facts in BOOK.classes.items()} == BY_CLASS


@pytest.mark.slow
def test_a_shipped_rule_would_pass_as_a_user_s() -> None:
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name not in {rulebook.CAUSES, rulebook.CLASSES}:
            rules, faults = parse_rules(path.read_text("utf-8"), BOOK.causes)
            assert rules
            assert not [fault for fault in faults if "look-around" not in fault], path.name


def test_no_line_takes_long() -> None:
    """The longest line that rules see, made of each rule's own words: a regular expression may search for ever."""
    dice = random.Random(1)
    fill = ["a" * 40, " ", "1", "'", "x.y ", "/a/b", "error: ", "failed ", "not found ", "Error ", "must be "]
    for rule in BOOK.rules.values():
        compiled = Compiled(rule)
        for pattern in rule.patterns:
            for word in sorted(needed_words(pattern))[:2]:
                piece = word + dice.choice(fill)
                begun = time.process_time()
                compiled.search(piece * (LONGEST // len(piece)))
                assert time.process_time() - begun < 0.5, (rule.id, piece)


@pytest.mark.parametrize("match", ["slow .{0,300}z.{0,300}z.{0,300}z.{0,300}z.{0,300}!", "slow (z+z+)+y"])
def test_a_team_s_rule_cannot_take_long(match: str) -> None:
    rules, faults = parse_rules(
        f"- {{id: mine, cause: fs_full, match: '{match}', examples: [], source: me}}", BOOK.causes
    )
    assert not faults
    book = BOOK.extended(rules)
    begun = time.process_time()
    for number in range(3):
        assert not [rule for rule, _ in book.matches(f"slow {'z' * 3000} {number}") if rule.id == "mine"]
    assert time.process_time() - begun < 5
    assert book.matches("CUDA out of memory"), "the shipped rules are still used"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- [", "not valid YAML"),
        ("a: 1", "a list of rules"),
        ("- {id: x}", "missing required field"),
        ("- {id: x, cause: nobody, match: abcdef, examples: [abcdef], source: me}", "unknown cause 'nobody'"),
        ("- {id: x, cause: fs_full, class: what, match: abcdef, examples: [], source: me}", "unknown class 'what'"),
        ("- {id: x, cause: fs_full, match: '(abc', examples: [], source: me}", "not a valid regular expression"),
        ("- {id: x, cause: fs_full, match: '[a-z]+', examples: [], source: me}", "a fixed word"),
        ("- {id: x, cause: fs_full, match: '(?!x)abcdef', examples: [], source: me}", "without look-around"),
        ("- {id: x, cause: fs_full, match: abcdef, examples: [], source: me, color: red}", "unknown field"),
    ],
)
def test_a_rule_that_cannot_be_used_is_said(text: str, fault: str) -> None:
    rules, faults = parse_rules(text, BOOK.causes)
    assert not rules
    (said,) = faults
    assert fault in said


def test_one_bad_rule_leaves_the_others() -> None:
    good = "- {id: mine, cause: fs_full, match: 'tape robot is full', examples: [], source: our wiki}\n"
    rules, faults = parse_rules(good + "- {id: bad}\n", BOOK.causes)
    assert [rule.id for rule in rules] == ["mine"]
    assert len(faults) == 1
    more = BOOK.extended(rules)
    assert [rule.id for rule, _ in more.matches("error: the tape robot is full")][:1] == ["mine"]
    assert "mine" not in BOOK.rules


def test_unless_applies_to_the_match() -> None:
    warned = "ValueError: batch size must be divisible by 8; the same device is used"
    far = f"ValueError: batch size must be divisible by 8; {'x ' * 200} the same device is used"
    assert "config-words" not in {rule.id for rule, _ in BOOK.matches(warned)}
    assert "config-words" in {rule.id for rule, _ in BOOK.matches(far)}
