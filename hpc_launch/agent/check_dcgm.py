"""DCGM's quick diagnosis of the GPUs, for check.py (`preflight: full`).

The JSON has no stable schema (DCGM documentation, dcgmi diag): version 3 names `gpu_ids`, version 4 `entity_id`, and
the statuses are written differently. Standard library of Python 3.6 or later.
"""

import json
from typing import Any, Dict, Iterator, List, Tuple

from hpc_launch.agent.check_gpus import Ask
from hpc_launch.agent.check_host import Result, answer, result, unknown

DCGM_S = 60.0
HARMLESS = ("Persistence Mode", "Environment Variables", "Environmental Variables")
"""Tests of the node's configuration, which says nothing about its GPUs."""


def dcgm(gpus: int, ask: Ask = answer) -> Result:
    """Level 1 of `dcgmi diag`, which takes a few seconds; it needs a host engine that runs."""
    code, text = ask(["dcgmi", "diag", "-r", "1", "-j"], DCGM_S)
    try:
        words = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
    except (ValueError, RecursionError):
        if "{" in text:
            return unknown("the answer of dcgmi is incomplete")
        return unknown("dcgmi exits with %d: %s" % (code, " ".join(text.split())[:200]))
    outcomes = list(outcomes_of(words))
    if len({gpu for _, _, ids in outcomes for gpu in ids}) > gpus:
        return unknown("the node has GPUs of other jobs, too")
    failed = [name for name, status, _ in outcomes if status == "fail" and not name.startswith(HARMLESS)]
    if failed:
        return result(False, "DCGM: %s" % failed[0])
    passed = [name for name, status, _ in outcomes if status == "pass"]
    return result(True, "%d tests passed" % len(passed)) if passed else unknown("DCGM tested nothing")


def outcomes_of(words: Any) -> Iterator[Tuple[str, str, List[str]]]:
    """(name of the test with its first warning, status, GPUs) of each result."""
    for category in children(children_of(words, "DCGM GPU Diagnostic"), "test_categories"):
        for test in children(category, "tests"):
            for one in children(test, "results"):
                warnings = one.get("warnings") or ""
                first = warnings[0] if isinstance(warnings, list) else warnings
                text = str(first.get("warning") if isinstance(first, dict) else first)
                name = "%s%s" % (test.get("name"), ": %s" % text[:200] if text else "")
                ids = str(one.get("gpu_ids", one.get("entity_id", one.get("gpu_id", "")))).split(",")
                yield name, str(one.get("status")).lower(), [gpu.strip() for gpu in ids if gpu.strip()]


def children_of(words: Any, key: str) -> Dict[str, Any]:
    """A mapping inside a mapping."""
    inner = words.get(key) if isinstance(words, dict) else None
    return inner if isinstance(inner, dict) else {}


def children(words: Dict[str, Any], key: str) -> List[Dict[str, Any]]:
    """The mappings of a list inside a mapping: DCGM also writes null."""
    inner = words.get(key)
    return [one for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []
