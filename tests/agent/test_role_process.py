"""A role's process: when it ended, by the records of its script and its nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hpc_launch.agent.role_process import End, Host, RoleProcess
from tests.cluster.faults import wait_until

SPEC: dict[str, Any] = {"nodes": [[0, 3]], "ready": {}, "ends": False}


def test_how_a_role_ended_is_known_before_its_script_has_ended(tmp_path: Path) -> None:
    roles = []
    for at, name in enumerate(("late", "early", "running")):
        ends = f"echo >$1/end.json; touch -d @{1000 - at} $1/end.json; exit 3" if name != "running" else "exec sleep 60"
        (tmp_path / f"{name}.sh").write_text(f"{ends}\n")
        roles.append(
            RoleProcess(name, 0, {**SPEC, "names": [name]}, str(tmp_path), [Host(f"n{one}", "") for one in (1, 2, 3)])
        )
        roles[-1].start(dict(os.environ))
    wait_until(lambda: not roles[0].alive and not roles[1].alive, explain=lambda: "they run on")
    try:
        for one in roles:
            one.look()
        found = {one.name: one.first_end() for one in roles}
        assert found == {"late": End(1000, 3, "n1"), "early": End(999, 3, "n1"), "running": None}
        (tmp_path / "running" / "logs").mkdir()
        for node, text in enumerate(("0", "", "-9")):
            (tmp_path / "running" / "logs" / f"node-{node}.rank-{node}.exit").write_text(text)
        noted = roles[2].first_end()
        assert noted is not None
        assert (noted.code, noted.node) == (0, "n1")
        roles[2].spec = {**SPEC, "ends": True}
        noted = roles[2].first_end()
        assert noted is not None
        assert (noted.code, noted.node) == (247, "n3")
    finally:
        roles[2].signal(9)
        roles[2].wait()
