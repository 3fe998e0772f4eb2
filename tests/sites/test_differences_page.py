"""Every difference that the page lists is said by keys that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from hpc_launch.job.type_hints import fields_of, members
from hpc_launch.sites.profile import SiteProfile

PAGE = Path(__file__).parents[2] / "docs" / "site-differences.md"
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)


def test_there_are_seventy_rows_in_order() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 71))


@pytest.mark.parametrize(("number", "what", "keys"), ROWS)
def test_each_key_of_a_row_is_in_the_schema(number: str, what: str, keys: str) -> None:
    named = re.findall(r"`([^`]+)`", keys)
    assert named
    for key in named:
        _follow(SiteProfile, key.split("."))


def _follow(annotation: Any, path: list[str]) -> None:
    for member in members(annotation) if path else ():
        if member.kind is dict and path[0] == "NAME":
            _follow(member.args[1], path[1:])
            return
        if member.kind is list:
            _follow(member.args[0], path)
            return
        if member.is_struct and issubclass(member.kind, Struct) and path[0] in fields_of(member.kind):
            _follow(fields_of(member.kind)[path[0]].type, path[1:])
            return
    assert not path, f"there is no {'.'.join(path)} in {annotation}"
