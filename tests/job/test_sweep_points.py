"""The points of a sweep, and values of `--set`, typed by a person or by a point."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hpc_launch.base.findings import Finding
from hpc_launch.job.document import KeyPath
from hpc_launch.job.group_keys import RandomRange, RandomValues, Sweep
from hpc_launch.job.job import JobSpec
from hpc_launch.job.job_file import override_layer
from hpc_launch.job.reader import read
from hpc_launch.job.sweep_points import SweepFault, SweepPoint, count_points, label, matches, points_of
from hpc_launch.job.yaml_source import parse_document


def points(text: str) -> tuple[SweepPoint, ...]:
    document, _ = parse_document(f"name: x\nsweep: {text}", "job.yaml")
    assert document is not None
    job, findings = read(document, JobSpec)
    assert job is not None, findings
    assert job.sweep is not None
    return points_of(job.sweep, document.written)


def labels(text: str) -> list[str]:
    return [label(point.values) for point in points(text)]


def test_every_combination_of_a_grid_is_a_point_with_its_values_as_written() -> None:
    found = points('{grid: {args.lr: [1e-4, 3.0e-4], env.MODE: ["1", fast]}}')
    assert [point.sets for point in found] == [
        ("args.lr=1e-4", 'env.MODE="1"'),
        ("args.lr=1e-4", "env.MODE=fast"),
        ("args.lr=3.0e-4", 'env.MODE="1"'),
        ("args.lr=3.0e-4", "env.MODE=fast"),
    ]
    assert [point.number for point in found] == [0, 1, 2, 3]


def test_zip_and_list_keep_values_together() -> None:
    assert labels("{zip: {args.a: [1, 2], args.b: [x, y]}}") == ["a=1,b=x", "a=2,b=y"]
    assert labels("{list: [{args.a: 1, args.b: [2, 3]}, {args.a: 2}], grid: {args.c: [0]}}") == [
        "c=0,a=1,b=[2, 3]",
        "c=0,a=2",
    ]


def test_excluded_points_are_left_out_by_value() -> None:
    text = "{grid: {args.lr: [1e-4, 0.001], args.seed: [1, 2]}, exclude: [{args.lr: 1e-3, args.seed: 2}]}"
    assert labels(text) == ["lr=1e-4,seed=1", "lr=1e-4,seed=2", "lr=0.001,seed=1"]


def test_random_points_are_distinct_in_range_and_the_same_for_the_same_seed() -> None:
    text = "{random: {count: 20, seed: 7, values: {args.lr: {low: 1e-5, high: 1e-2, scale: log}, args.n: [1, 2]}}}"
    found = points(text)
    assert found == points(text) != points(text.replace("seed: 7", "seed: 8"))
    assert len({point.values for point in found}) == 20
    assert all(1e-5 <= float(dict(point.values)["args.lr"]) <= 1e-2 for point in found)
    whole = RandomValues(count=3, values={"args.n": RandomRange(low=1, high=3)})
    assert sorted(point.sets[0] for point in points_of(Sweep(random=whole), {})) == ["args.n=1", "args.n=2", "args.n=3"]


def test_a_billion_points_are_counted_without_making_them() -> None:
    values = list(range(1000))
    sweep = Sweep(grid={"args.a": values, "args.b": values, "args.c": values})
    begin = time.process_time()
    assert count_points(sweep) == 10**9
    with pytest.raises(SweepFault, match="1,000,000,000 points"):
        points_of(sweep, {})
    drawn = Sweep(random=RandomValues(count=10**9, values={"args.a": RandomRange(low=0, high=1)}))
    with pytest.raises(SweepFault, match="1,000,000,000 points"):
        points_of(drawn, {})
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{}", "no points"),
        ("{grid: {args.a: []}}", "no values"),
        ("{grid: {site: [a, b]}}", "cannot change `site`"),
        ("{grid: {queue: [a, b]}}", "cannot change `queue`"),
        ("{grid: {name: [a, b]}}", "cannot change `name`"),
        ("{list: [{sweep.limit: 1}]}", "cannot change `sweep.limit`"),
        ("{grid: {args.a: [1, 1]}}", "two points are the same"),
        ("{grid: {args.a: [0.001, 1e-3]}}", "two points are the same"),
        ("{grid: {args.a: [1]}, zip: {args.a: [2]}}", "values twice"),
        ("{zip: {args.a: [1], args.b: [1, 2]}}", "differ in length"),
        ("{grid: {args.a: [1]}, exclude: [{args.b: 1}]}", "does not vary"),
        ("{grid: {args.a: [1]}, exclude: [{args.a: 1}]}", "no points"),
        ("{random: {count: 5, values: {args.a: [1, 2]}}}", "only 2 different"),
        ("{random: {count: 5, values: {args.a: {low: 0, high: 1, scale: log}}}}", "is empty"),
        ("{random: {count: 5, values: {args.a: {low: -1e+308, high: 1e+308}}}}", "too large"),
    ],
)
def test_invalid_sweeps_say_what_is_wrong(text: str, fault: str) -> None:
    with pytest.raises(SweepFault, match=fault):
        points(text)


def test_a_point_is_named_by_some_of_its_values() -> None:
    one, other = points("{list: [{args.lr: 3e-4, env.lr: a}, {args.lr: 0.1, args.seed: 1}]}")
    assert label(one.values) == "args.lr=3e-4,env.lr=a"
    assert matches(one, "args.lr=3e-4")
    assert matches(one, "args.lr=0.0003")
    assert not matches(one, "lr=3e-4")
    assert matches(other, "lr=1e-1,seed=1")
    assert not matches(other, "lr=0.2")
    assert not matches(other, "")


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
