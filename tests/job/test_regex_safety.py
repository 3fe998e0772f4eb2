"""Which regular expressions of other people are refused, for a search might never end."""

from __future__ import annotations

import time

import pytest

from hpc_launch.diagnose.read_rules import shipped
from hpc_launch.job.regex_safety import MAX_SAFE_REPEATS, matches_in_time, may_backtrack_forever


@pytest.mark.parametrize(
    "pattern",
    [
        "(x+x+)+y", "(a|a)*b", "(a|aa)+b", "(?:(?:a+)b?)*c", "(a*)*b", "( ?\\w+ ?)*:", ".*.*.*=", "tape (a+)+$",
        "(?:a?){40}a{40}b", "(\\s\\w|\\s.)*", "((a)|(.))*b", "[^x]*.*[^y]*z", "(?=(a+)+$)tape", "(?i)(Ab|ab)*c",
        "(?:a+ a+)*b", "(?:[^:;]*:.*;)*x", "(?i)(?:[a-z]+A)*1", "(?:.*,)*x",
        "abort(?:a{1,12}){1,12}!", "(?:a*){1,12}b", "(?:(?:a|b|ab){1,3}){1,9}c", r"(?:\w+\s*)*x", r"(?:[\w.]+\.)*x",
        r".*a.*a.*a.*b", r".*a.*a.*a.*a.*a.*a.*a.*(\d+)b", r"\w*a\w*a\w*a\w*b", r"\w*a[a-z]*a\w*a[a-z]*1",
        "(?:.*a){2}(?:.*a){2}b", "(.*a|x)(.*a|x)(.*a|x)(.*a|x)b", "(?:.*a){12}b", "(.*a)?(.*a)?(.*a)?(.*a)?b",
        "a?" * 40 + "a" * 40, "(a?)" * 40 + "b", "[0-9]{0,12}" * 10 + "x",
    ],
)  # fmt: skip
def test_what_can_go_back_for_ever(pattern: str) -> None:
    assert may_backtrack_forever(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"step (\d+)/(\d+)", r"loss ([\d.]+)", "foo.*bar.*baz", "(?:foo|bar)*x", r"\w+\s*=\s*\d+", "[a-z]+[0-9]*:",
        r"^\s*\w+\s*$", "(?:ab){0,3}c*", "[a-z][a-z0-9_-]{0,30}", "a{1,3}b{1,3}c{1,3}", "(?:new |native |a )*thread",
        r"(?:\w+ )*step (\d+)", r"(?:\d+\.)*\d+", r"(?:\[[^\]]*\] ?)*step", "(?:[^,]*,)*x",
        r".*step=(\d+).*\.ckpt", r"(\d+)-(\d+)-(\d+)T(\d+):(\d+):(\d+)", r"\S+\s+\S+\s+\S+\s+\S+\s+\S+", ".*a.*b.*c",
        "[0-9a-f]{40} [0-9a-f]{40} [0-9a-f]{40} [0-9a-f]{40}", "a{20}a{20}a{20}a{20}a{20}", ".{0,80}a.{0,80}b",
        "", "(?:)*", "(", "a**", "a{99999999999}",
    ],
)  # fmt: skip
def test_what_comes_to_its_end_or_is_no_expression(pattern: str) -> None:
    assert not may_backtrack_forever(pattern)


@pytest.mark.parametrize(
    "pattern",
    [".{0,400}a" * 7 + "b", "[a-z]{0,300}x[a-z]{1,300}x[a-z]{0,300}x[a-z]{0,300}1", "(?:.{0,90}a){2}(?:.{0,90}a){2}b"],
)
def test_a_pattern_of_a_profile_has_few_long_repetitions(pattern: str) -> None:
    assert not may_backtrack_forever(pattern)
    assert may_backtrack_forever(pattern, longest=MAX_SAFE_REPEATS)


@pytest.mark.slow
@pytest.mark.timeout(120, method="thread")  # the other method uses the timer that the limit needs
def test_a_comparison_that_takes_long_is_given_up() -> None:
    assert matches_in_time("[a-z]+", "abc")
    begun = time.monotonic()
    assert not matches_in_time("z?.{0,300}z.{0,300}z.{0,300}z.{0,300}z.{0,300}!", "z" * 1000)
    assert time.monotonic() - begun < 60


@pytest.mark.slow
def test_none_of_the_shipped_rules_may() -> None:
    for rule in shipped().rules.values():
        assert not [pattern for pattern in (*rule.patterns, rule.unless) if may_backtrack_forever(pattern)], rule.id
