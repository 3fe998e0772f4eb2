"""Variables of each process, where torchrun starts the processes: the script itself is run, on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpc_launch.script.render import render
from tests.sites.conftest import Plan, Write

SITE = """
name: here
scheduler: local
node_classes: {here: {cpus: 2}}
queues: {here: {node_class: here, memory: omit}}
prelude:
  - {mkdir: ["${run.dir}/every"], where: nodes}
  - {prepend: {MANY: "x y"}}
env:
  - {set: {MINE: "rank ${shell.RANK} of $${WORLD_SIZE}"}, scope: rank}
  - {set: {NODE: "${shell.HPC_LAUNCH_NODE}"}, scope: node}
defaults: {environment: {python: "${launcher.python}"}}
"""
SCRIPT = "import os; print('|'.join(os.environ[name] for name in ('RANK', 'MINE', 'NODE', 'MANY')))\n"


@pytest.mark.torch
def test_each_process_of_torchrun_has_its_own(write: Write, plan: Plan, tmp_path: Path) -> None:
    write(here=SITE)
    ready = plan(job="processes_per_node: 2\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.sh").write_text(render(ready.plan, standalone=True))
    attempt = tmp_path / "run" / "attempts" / "001"
    attempt.mkdir(parents=True)
    ran = subprocess.run(["bash", "job.sh", str(attempt)], capture_output=True, text=True, timeout=120, check=False)
    log = (attempt / "logs" / "node-0.log").read_text()
    assert ran.returncode == 0, ran.stdout + ran.stderr + log
    assert "0|rank 0 of ${WORLD_SIZE}|0|x y" in log
    assert "1|rank 1 of ${WORLD_SIZE}|0|x y" in log
    assert (tmp_path / "run" / "every").is_dir()
