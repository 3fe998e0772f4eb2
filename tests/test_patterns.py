"""Regular expressions that others wrote: what they match, how long they take, and which are refused."""

from __future__ import annotations

import re
import threading
import time

import pytest

from hpc_launch.base.patterns import compiled, matches_whole

SLOW = [
    "(x+x+)+y", "(a|a)*b", "(a*)*b", ".*.*.*=", "(?:a?){40}a{40}b", "((a)|(.))*b", "(?:a*){1,12}b", "(?:.*a){12}b",
    r".*a.*a.*a.*a.*a.*a.*a.*(\d+)b", "a?" * 40 + "a" * 40 + "b", "[0-9]{0,12}" * 10 + "!", ".{0,300}z" * 5 + "!",
]  # fmt: skip


@pytest.mark.parametrize("pattern", SLOW)
def test_a_search_takes_as_long_as_the_text_is_in_a_thread_too(pattern: str) -> None:
    begun = time.process_time()
    texts = [letter * 2000 for letter in "axz1"]
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(map(compiled(pattern).search, texts)))
    thread.start()
    thread.join()
    assert found == [None] * 4
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "pattern", ["(", "a**", "a{99999999999}", r"(?=a)b", r"(a)\1", "(?:(?:a{1000}){1000}){1000}", "(?:.?){900}" * 9]
)
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(re.error):
        compiled(pattern)
    assert not matches_whole(pattern, "a")


def test_a_match_is_that_of_re() -> None:
    for pattern in (r"step (?P<step>\d+)(?:/(\d+))?", "(?i)LOSS ([0-9.]+)", "^é+", r"\w+@(?:v100|a100)$"):
        for text in ("x step 3/9", "step 4", "loss 2.5", "éé", "me@a100", ""):
            ours, plain = compiled(pattern).search(text), re.search(pattern, text)
            assert (ours is None) == (plain is None)
            if ours is not None and plain is not None:
                assert (ours.span(), ours.groups(), ours.groupdict()) == (
                    plain.span(),
                    plain.groups(),
                    plain.groupdict(),
                )
