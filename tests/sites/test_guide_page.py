"""The page on writing profiles: its pieces are right, and together they are a profile that plans a job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_launch.job.merge_operators import parse_operators
from hpc_launch.job.reader import check
from hpc_launch.job.yaml_source import parse_document
from hpc_launch.sites.layers import job_keys
from hpc_launch.sites.profile import SiteProfile
from tests.sites.conftest import Plan, Write

TEXT = (Path(__file__).parents[2] / "docs" / "writing-a-profile.md").read_text("utf-8")
WHOLE = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
PIECES = [*WHOLE, *re.findall(r"^```text\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("text", PIECES)
def test_each_piece_holds_keys_of_a_profile(text: str) -> None:
    document, faults = parse_document(text, "page")
    assert document is not None, faults
    marked, found = parse_operators(document, {(): SiteProfile, **job_keys(document.data)})
    assert [*faults, *found, *check(marked, SiteProfile)] == []


def test_the_pieces_together_plan_a_job(write: Write, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    write(mycluster="".join(WHOLE) + "options: {nvme: {constraint: nvme}}\n")
    job = "nodes: 2\nlauncher: srun\nargs: {cache: '${paths.local}'}\nenv: {FI_CXI_RDZV_PROTO: alt_read}\n"
    script = plan("mycluster", job).script
    for line in ("--constraint=nvme ", "--network=disable_rdzv_get ", "module --force purge ", "ROCR_VISIBLE_DEVICES="):
        assert line in script
