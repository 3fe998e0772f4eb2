"""Quoting: whatever a value holds, real bash hands it on byte for byte; and `${…}` is filled, never run."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpc_launch.job.shell_text import Text, UnknownName, Var, interpolate, join_parts, plain, quote, visible
from tests.hostile import NASTY

WORDS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40)
"""All that a program's argument can hold: any character but NUL and lone surrogates."""


def through_bash(words: list[str], environment: dict[str, str]) -> list[str]:
    """The words as a real bash hands them to a program."""
    script = f"printf '%s\\0' {' '.join(words)}" if words else "true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env=environment)
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=60)
@given(st.lists(WORDS, min_size=1, max_size=30))
@example(list(NASTY))
def test_words_round_trip_through_bash_in_any_locale(words: list[str]) -> None:
    quoted = [quote(word) for word in words]
    for locale in ("C", "C.UTF-8"):
        assert through_bash(quoted, {"LC_ALL": locale, "PATH": "/usr/bin:/bin"}) == words


@given(WORDS)
def test_a_quoted_word_is_one_visible_line_unless_it_says_so(word: str) -> None:
    assert quote(word).isprintable()


@settings(max_examples=40)
@given(WORDS, WORDS)
def test_variable_parts_are_expanded_and_nothing_else(before: str, after: str) -> None:
    text: Text = join_parts([before, Var("X"), after])
    value = 'hostile "$(id)" \n*'
    (word,) = through_bash([quote(text)], {"X": value, "PATH": "/usr/bin:/bin"})
    assert word == before + value + after
    assert plain(text) is None


@given(WORDS)
def test_text_without_holes_stays(word: str) -> None:
    if "${" not in word:
        assert interpolate(word, {}) == ((word,) if word else ())


def test_holes_are_filled_once() -> None:
    names = {"paths.x": "${home}", "home": "/home/a"}
    assert interpolate("${paths.x}/y", names) == ("${home}/y",)
    assert interpolate("$${paths.x} $HOME ${run.dir}", names) == ("${paths.x} $HOME ", Var("HPC_LAUNCH_RUN_DIR"))
    with pytest.raises(UnknownName, match=r"pats\.x"):
        interpolate("${pats.x}", names)


@given(st.text(max_size=40))
def test_visible_text_cannot_move_a_cursor(text: str) -> None:
    assert visible(text).isprintable()


def test_what_only_looks_blank_is_shown() -> None:
    assert visible("a\u3164\u2800b") == "a\\u3164\\u2800b"
