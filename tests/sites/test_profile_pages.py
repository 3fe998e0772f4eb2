"""The pages on profiles: the differences that one lists and the pieces that the other shows fit the schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from hpc_launch.job.merge import parse_operators
from hpc_launch.job.reader import check
from hpc_launch.job.type_hints import fields_of, members
from hpc_launch.job.yaml_source import parse_document
from hpc_launch.sites.layers import job_keys
from hpc_launch.sites.profile import SiteProfile
from tests.sites.conftest import Plan, Write

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "site-differences.md"
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


TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "writing-a-profile.md").read_text("utf-8")
WHOLE = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
PIECES = [*WHOLE, *re.findall(r"^```text\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("text", PIECES)
def test_each_piece_holds_keys_of_a_profile(text: str) -> None:
    document, faults = parse_document(text, "page")
    assert document is not None, faults
    marked, found = parse_operators("page", document, {(): SiteProfile, **job_keys(document.data)})
    assert [*faults, *found, *check(marked, SiteProfile)] == []


def test_the_pieces_together_plan_a_job(write: Write, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    write(mycluster="".join(WHOLE) + "options: {nvme: {constraint: nvme}}\n")
    job = "nodes: 2\nlauncher: srun\nargs: {cache: '${paths.local}'}\nenv: {FI_CXI_RDZV_PROTO: alt_read}\n"
    script = plan("mycluster", job).script
    for line in ("--constraint=nvme ", "--network=disable_rdzv_get ", "module --force purge ", "ROCR_VISIBLE_DEVICES="):
        assert line in script
