"""wandb's key in a real Apptainer: the login file alone is seen inside, not to be written, and stands in no file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.slurm.user import User

KEY = "0123456789abcdef-the-key-of-alice"
LOOK = """
grep -c password "$NETRC"
echo spoilt >>"$NETRC" && echo written
ls "$HOME"/private && echo home is seen
echo mode is "$WANDB_MODE"
"""


@pytest.fixture
def user(cluster_sid: Cluster, user_dir: Path) -> User:
    return User(cluster_sid, user_dir)


def test_the_login_file_is_bound_in_for_reading(user: User, sif: Path) -> None:
    netrc = user.home / "login"
    user.cluster.write(netrc, f"machine api.wandb.ai\n  login user\n  password {KEY}\n", mode=0o600)
    user.site("internet: direct\n")
    job = {
        "name": "look",
        "nodes": 2,
        "launcher": "srun",
        "trackers": ["wandb"],
        "container": {"image": str(sif), "binds": user.binds, "home": False},
        "command": ["sh", "-c", LOOK],
    }
    told = {"NETRC": str(netrc)}
    output = user.completed(user.job(json.dumps(job)), env=told)
    said = [line.partition("|")[2].strip() for line in output.splitlines() if line.startswith("node-")]
    assert said.count("1") == 2
    assert said.count("mode is") == 2
    assert "written" not in said
    assert "home is seen" not in said
    runs = user.home / "runs"
    assert not [path for path in runs.rglob("*") if path.is_file() and KEY in path.read_text(errors="replace")]
    assert "spoilt" not in netrc.read_text()
