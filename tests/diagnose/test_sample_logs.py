"""Short logs of every class, in the words of the programs: what a person would say, the diagnosis says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_launch.diagnose.decide_verdict import default_action
from hpc_launch.diagnose.diagnosis import FAILURE_CLASSES
from tests.diagnose.logs import BOOK, why

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['class']}-{case['log'][:40]!r}")
def test_class_verdict_and_place(case: dict[str, Any]) -> None:
    found = why(case["log"])
    assert found.failure_class == case["class"], found
    assert default_action(found) == case.get("verdict", default_action(found))
    assert found.first_failure.rank == case.get("rank", found.first_failure.rank)
    assert found.first_failure.node == case.get("node", found.first_failure.node)
    assert found.advice
    assert found.cause in BOOK.causes or found.failure_class == "success"
    for quote in found.evidence:
        written = case["log"].splitlines()[quote.line - 1]
        assert quote.text.split("]: ")[-1].strip()[:40] in written, "the evidence stands where it is said to"


def test_every_class_has_a_case() -> None:
    assert {case["class"] for case in CASES} == set(FAILURE_CLASSES)
