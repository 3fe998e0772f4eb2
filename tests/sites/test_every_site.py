"""One job file, without a queue and without a number of GPUs, on sites of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.sites.conftest import Plan

FOLDER = Path(__file__).parents[1] / "golden" / "sites"
PROFILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))}
SITES = [name for name, data in PROFILES.items() if data.get("kind") != "base" and data["scheduler"] != "local"]
CASES = [
    (site, launcher)
    for site in SITES
    for launcher in ("torchrun", "srun", "deepspeed")
    if launcher != "srun" or "hosts" not in PROFILES[site]["scheduler"]
]


@pytest.mark.parametrize(("site", "launcher"), CASES)
def test_the_same_job_goes_everywhere(site: str, launcher: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(FOLDER))
    ready = plan(site, f"nodes: 2\naccount: proj1\ntime: 30m\nlauncher: {launcher}\n")
    site_of = ready.loaded.resolved.site
    queue = site_of.queues[site_of.default_queue or next(iter(site_of.queues))]
    assert ready.plan.processes_per_node == max(site_of.node_classes[queue.node_class].gpus, 1)
