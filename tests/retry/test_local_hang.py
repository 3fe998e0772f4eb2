"""A training in which one rank does not come to a collective, on this machine: ended, and told who was missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.here import launch

pytestmark = pytest.mark.torch

TRAINING = """
import time
import torch, torch.distributed as dist

def load_next_batch():
    time.sleep(300)

dist.init_process_group("gloo")
print("step 1", flush=True)
if dist.get_rank() == 1:
    load_next_batch()
dist.all_reduce(torch.ones(1))
"""

JOB: dict[str, Any] = {
    "name": "hanging",
    "site": "local",
    "script": "train.py",
    "processes_per_node": 2,
    "time": "00:05:00",
    "hang": "6s",
    "retry": 1,
}


@pytest.mark.prove  # the sample of the grid has hangs, too
@pytest.mark.slow
def test_a_rank_that_others_wait_for_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps(JOB))
    (tmp_path / "train.py").write_text(TRAINING)
    done = launch(tmp_path, "submit", "job.yaml", "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(launch(tmp_path, "why", "@last", "--json").stdout)
    assert found["class"] == "hang_no_progress"
    assert found["first_failure"]["rank"] == 1
    assert any("rank 1 stood at" in quote["text"] and "load_next_batch" in quote["text"] for quote in found["evidence"])
