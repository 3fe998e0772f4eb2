"""A role's process: of two that end between two looks, the first is known by the records of their scripts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hpc_launch.agent.role_process import Host, RoleProcess
from tests.cluster.faults import wait_until

SPEC: dict[str, Any] = {"nodes": [[0, 1]], "ready": {}, "ends": False}


def test_the_one_that_ended_first_is_looked_at_first(tmp_path: Path) -> None:
    roles = []
    for at, name in enumerate(("late", "early", "running")):
        ends = f"echo >$1/end.json; touch -d @{1000 - at} $1/end.json" if name != "running" else "exec sleep 60"
        (tmp_path / f"{name}.sh").write_text(f"{ends}\n")
        roles.append(RoleProcess(name, 0, {**SPEC, "names": [name]}, str(tmp_path), [Host("n1", "n1")]))
        roles[-1].start(dict(os.environ))
    wait_until(lambda: not roles[0].alive and not roles[1].alive, explain=lambda: "they run on")
    try:
        assert [one.name for one in sorted(roles, key=RoleProcess.ended_at)] == ["early", "late", "running"]
        roles[1].look()
        assert min(roles, key=RoleProcess.ended_at).name == "late"
    finally:
        roles[2].signal(9)
        roles[2].wait()
