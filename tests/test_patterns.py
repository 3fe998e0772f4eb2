"""Regular expressions that others wrote: which are refused."""

from __future__ import annotations

import re

import pytest

from hpc_launch.base.patterns import compiled, matches_whole


@pytest.mark.parametrize(
    "pattern", ["(", "a**", "a{99999999999}", r"(?=a)b", r"(a)\1", "(?:(?:a{1000}){1000}){1000}", "(?:.?){900}" * 9]
)
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(re.error):
        compiled(pattern)
    assert not matches_whole(pattern, "a")
