"""Values of `--set`, typed by a person or by a point of a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_launch.base.findings import Finding
from hpc_launch.job.document import KeyPath
from hpc_launch.job.group_keys import Sweep
from hpc_launch.job.job_file import override_layer
from hpc_launch.job.sweep_points import label, points_of

TEXTS = ["a\nb", "a\n\nb\n", "\x1b[31m", "x\u2028y", "\x85", "😀", "é", "a: b", "- x", "'", '"', "\\n", "{", "*", " #"]


def value_of(setting: str) -> Any:
    findings: list[Finding] = []
    layer = override_layer([setting], findings)
    assert not findings
    return layer.data["args"]["x"]


def test_text_that_is_not_yaml_stays_as_it_is() -> None:
    assert value_of("args.x=a\nb") == "a\nb"
    assert value_of("args.x=it's: {") == "it's: {"


@pytest.mark.parametrize("text", TEXTS)
def test_a_point_keeps_every_character_of_a_value(text: str) -> None:
    as_written: dict[KeyPath, str] = {("sweep", "grid", "args.x", 0): text}
    for written in ({}, as_written):
        (point,) = points_of(Sweep(grid={"args.x": [text]}), written)
        assert value_of(point.sets[0]) == text


def test_the_value_of_a_secret_is_in_no_message() -> None:
    (point,) = points_of(Sweep(grid={"env.HF_TOKEN": ["hf_value"]}), {})
    layer = override_layer(point.sets, [])
    assert label(point.values) == "HF_TOKEN=…"
    assert {str(place) for place in layer.places.values()} == {"--set env.HF_TOKEN=…"}
