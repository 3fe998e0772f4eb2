"""A verb that must happen once on a cluster: how long its answer is kept there, and how long a client asks for it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_launch.base.errors import Unreachable
from hpc_launch.remote.clusters import Cluster, keep
from hpc_launch.remote.forward import ASKED_S, KEPT_S, PROGRAM, Call, run_on
from hpc_launch.service.listener import QUIET


def once(state: Path, token: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What a login node runs."""
    command = [sys.executable, *shlex.split(PROGRAM)[1:], token, *words]
    env = {**os.environ, "XDG_STATE_HOME": str(state), "HPC_LAUNCH_HOME": str(state / "runs")}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_request_is_removed_when_no_client_asks_for_it_again(tmp_path: Path) -> None:
    requests = tmp_path / "hpc-launch" / "requests"
    answers = {token: once(tmp_path, token, "cancel", token) for token in ("old", "recent")}
    assert "no run is called 'recent'" in answers["recent"].stderr
    now = time.time()
    os.utime(requests / "old", (now, now - KEPT_S - 60))
    os.utime(requests / "recent", (now, now - KEPT_S + 60))

    once(tmp_path, "new", "cancel", "new")
    assert sorted(path.name for path in requests.iterdir()) == ["new", "recent"]
    again = once(tmp_path, "recent", "cancel", "another")
    assert (again.returncode, again.stderr) == (answers["recent"].returncode, answers["recent"].stderr)


def test_a_client_asks_only_while_the_answer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    keep(Cluster(name="there", host="nowhere.invalid", version="0", environment="/e", code="/c", added=1.0))
    assert ASKED_S < KEPT_S
    call = Call(("cancel", "x"), site=False, made=time.time() - ASKED_S - 1)
    with pytest.raises(Unreachable, match="typed more than a day ago"):
        run_on("there", call, QUIET, lambda _: None)
