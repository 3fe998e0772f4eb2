"""The estimate against memory that others measured. Sources: tests/estimate/data/README.md."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from hpc_launch.estimate.memory import memory, memory_by_stage
from tests.estimate.measured_steps import nanotron
from tests.estimate.published_models import Row, aleph_alpha, simumax, torchtitan

GIB = 2**30
DATA = Path(__file__).parent / "data"


def rows(name: str) -> list[Row]:
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def simumax_error(row: Row) -> float:
    found = max(stage.allocated for stage in memory_by_stage(*simumax(row)))
    return found / GIB / float(row["allocated_gib"]) - 1


def torchtitan_error(row: Row) -> float:
    found = memory(*torchtitan(row))
    return (found.total - found.context) / GIB / float(row["reserved_gib"]) - 1


def test_memory_of_megatron_on_b200() -> None:
    """43 runs, allocated memory: error of at most 0.7 %, 0.1 % in the median."""
    errors = [abs(simumax_error(row)) for row in rows("simumax_b200.csv")]
    assert len(errors) == 43
    assert median(errors) < 0.001
    assert max(errors) < 0.007


def test_memory_of_torchtitan_on_h100() -> None:
    """18 runs, reserved memory: error of 1.7 % in the median, and at most 5 % except for two runs of 405B.

    The two differ from similar runs in ways that the source does not explain: 1F1B of table 5 takes 82.5 GiB, and 75.3
    in table 6 with as many tokens per micro batch and shards; CP 8 takes 7.8 GiB more than CP 4, which takes 1.2 more
    than CP 2. Both are within the estimate's range.
    """
    table = rows("torchtitan_h100.csv")
    errors = {index: torchtitan_error(row) for index, row in enumerate(table)}
    outside = {index for index, error in errors.items() if abs(error) > 0.05}
    assert {(table[index]["table"], table[index]["cp"], table[index]["vpp"]) for index in outside} == {
        ("5", "1", ""),
        ("6", "8", ""),
    }
    assert len(outside) == 2
    assert max(abs(error) for error in errors.values()) < 0.11
    assert median(abs(error) for error in errors.values()) < 0.017


@pytest.mark.parametrize("name", ["simumax_b200.csv", "torchtitan_h100.csv"])
def test_measured_memory_is_in_the_range(name: str) -> None:
    read = simumax if name.startswith("simumax") else torchtitan
    for row in rows(name):
        found = memory(*read(row))
        measured = float(row["reserved_gib"]) * GIB + found.context
        assert found.low <= measured <= found.high, row


def contradicted(row: Row, micro_batch: int) -> bool:
    """Runs on 64 GPUs that did not fit on 128."""
    return (row["billions"], row["gpus"], row["tp"], micro_batch) == ("65", "64", "8", 4)


def test_runs_that_ended_out_of_memory() -> None:
    """953 runs on A100 of 80 GB: none that ended out of memory is said to fit; "does not fit" is almost never wrong."""
    capacity = 79.2 * GIB
    said: Counter[tuple[str, str]] = Counter()
    for row in rows("aleph_alpha_layouts.csv"):
        for outcome in ("fits", "oom"):
            for size in map(int, row[outcome].split()):
                if outcome == "fits" and contradicted(row, size):
                    continue
                found = memory(*aleph_alpha(row, size))
                verdict = "fits" if found.high <= capacity else "too large" if found.low > capacity else "unknown"
                said[verdict, outcome] += 1
    assert said.total() == 953
    assert said["fits", "oom"] == 0
    assert said["fits", "fits"] > 320
    assert said["too large", "fits"] <= 0.05 * (said["too large", "fits"] + said["too large", "oom"])
    assert said["too large", "oom"] > 450


def test_runs_of_nanotron_that_fit() -> None:
    """26 runs on H100 of 80 GB: none is said not to fit.

    nanotron divides states and logits as Megatron does, but also keeps what it gathers for tensor parallelism.
    It reports 1.4 times the estimate (median). It publishes no run that ended out of memory.
    """
    runs = list(nanotron())
    assert len(runs) == 26
    assert all(memory(run.model, run.setup).low <= run.gpu.memory for run in runs)
