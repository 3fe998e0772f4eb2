"""Conditions: counts and versions compare as numbers, what is not known does not hold."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpc_launch.sites.job_settings import ConditionFacts, When, count_holds, holds, version_holds

FACTS = ConditionFacts(
    2, 4, 4, "gpu", "a100", "x86_64", "nvidia", "torchrun", None, {"nccl": "2.27.3", "libfabric": "1.22"}
)


@pytest.mark.parametrize(
    ("wanted", "value", "result"),
    [
        (">1", 1, False),
        (">1", 2, True),
        (">=2", 2, True),
        ("<4", 4, False),
        ("4", 4, True),
        ("=4", 5, False),
        ("!=4", 5, True),
        ("2-8", 8, True),
        ("2-8", 9, False),
        ("92-", 91, False),
        ("92-", 1000, True),
        (None, 7, True),
    ],
)
def test_counts(wanted: str | None, value: int, result: bool) -> None:
    assert count_holds(wanted, value) is result


@pytest.mark.parametrize(
    ("wanted", "value", "result"),
    [
        (">=2.27", "2.27.3", True),
        (">=2.27", "2.9", False),
        (">2.27", "2.27.3", False),
        ("<=2.27", "2.27.9", True),
        ("<1.18", "1.18.0", False),
        ("=2.4", "2.4.1", True),
        ("2.4", "2.40", False),
        ("!=2.4", "2.5", True),
        (">=2.4, <2.9", "2.9.1", False),
        (">=2.4, <2.9", "2.8.9+cu128", True),
        (">=1", None, False),
        ("!=1", None, False),
    ],
)
def test_versions(wanted: str, value: str | None, result: bool) -> None:
    assert version_holds(wanted, value) is result


@pytest.mark.parametrize(
    ("when", "result"),
    [
        (None, True),
        (When(), True),
        (When(nodes=">1", gpus_per_node="4"), True),
        (When(nodes=">1", gpus_per_node="8"), False),
        (When(queues=["cpu"]), False),
        (When(node_classes=["a100", "h100"]), True),
        (When(arch="aarch64"), False),
        (When(vendor="nvidia"), True),
        (When(launchers=["srun"]), False),
        (When(container=False), True),
        (When(container=True), False),
        (When(runtimes=["pyxis"]), False),
        (When(versions={"nccl": ">=2.27", "libfabric": "<2"}), True),
        (When(versions={"nccl": ">=2.27", "rocm": ">=6"}), False),
    ],
)
def test_all_of_a_condition_must_hold(when: When | None, result: bool) -> None:
    assert holds(when, FACTS) is result


def test_an_image_makes_it_a_container() -> None:
    assert holds(When(container=True, runtimes=["pyxis"]), replace(FACTS, runtime="pyxis"))
