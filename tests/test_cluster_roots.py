"""The same cluster in other Debian releases: newer versions of Slurm."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from tests.cluster import Cluster, ClusterError, ClusterUnavailable, roots
from tests.cluster.config import SYSTEM_PATH
from tests.cluster.requirements import REPOSITORY
from tests.slurm import test_end_states
from tests.slurm.user import User
from tests.test_cluster import assert_nothing_left

SLURM = {"trixie": ((24, 11), (24, 12)), "sid": ((26, 5), (99, 0))}
"""From which version of Slurm to below which; sid moves on."""


@pytest.fixture
def user(cluster_newer: Cluster, user_dir: Path) -> User:
    return User(cluster_newer, user_dir)


# -- the cluster ------------------------------------------------------------------------------


def test_the_version_of_slurm(cluster_newer: Cluster) -> None:
    low, below = SLURM[cluster_newer.settings.system or ""]
    words = cluster_newer.run(["sinfo", "--version"], check=True).stdout
    version = re.search(r"(\d+)\.(\d+)", words)
    assert version is not None, words
    assert low <= (int(version[1]), int(version[2])) < below


def test_a_job_hears_every_signal(cluster_newer: Cluster) -> None:
    ignored = cluster_newer.run(["srun", "grep", "SigIgn", "/proc/self/status"], check=True).stdout
    # Signals 32 and 33 are the C library's own (nptl(7)), and what the tests are started by may ignore them.
    named = (1 << 31) - 1
    assert int(ignored.split()[1], 16) & named == 0


@pytest.mark.prove
def test_a_node_dies_and_comes_back_and_nothing_is_left(cluster_trixie: Cluster) -> None:
    # Asks for `cluster_trixie` only in order to be skipped where there can be none.
    with Cluster.start(nodes=2, gpus_per_node=1, accounting=False, system="trixie") as own:
        folder, manager, root = own.layout.root, own.manager, Path(own.settings.root or "")
        own.kill_node("n2")
        with pytest.raises(ClusterError):
            own.node_exec("n2", ["true"])
        own.revive_node("n2")
        assert own.run(["srun", "-w", "n2", "hostname"], check=True).stdout == "n2\n"
        own.run(["touch", "/usr/of-this-cluster"], user="root", check=True)
        own.run(["sbatch", "--wrap", "sleep 300"], check=True)
    assert_nothing_left(folder, manager)
    assert root.is_dir()
    assert not (root / "usr" / "of-this-cluster").exists()


# -- hpc-launch on it -------------------------------------------------------------------------


def test_a_job_that_ends_well(user: User) -> None:
    command = "sh -c 'echo rank $RANK of $WORLD_SIZE'"
    text = f"name: done\nlauncher: srun\nnodes: 2\nprocesses_per_node: 2\ncommand: {command}\n"
    done = user.launch("submit", user.job(text), "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert user.status()["state"] == "COMPLETED"
    log = user.launch("logs", "@last").stdout
    for rank in range(4):
        assert f"rank {rank} of 4" in log


@pytest.mark.prove
def test_a_requeued_job(user: User) -> None:
    test_end_states.test_a_requeued_job_is_a_second_attempt_of_the_same_run(user)


# -- making a root ----------------------------------------------------------------------------


@pytest.fixture
def debootstrap(cluster_sid: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that makes an empty root; asks for `cluster_sid` only in order to be skipped with it."""
    monkeypatch.setenv(roots.CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(roots, "mirror", lambda: "http://mirror.invalid/debian")
    monkeypatch.setattr(roots, "SYSTEM_PATH", f"{tmp_path}:{SYSTEM_PATH}")
    program = tmp_path / "debootstrap"
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\nsleep 0.2\nfor folder; do :; done\nmkdir "$4/usr"\n')
    program.chmod(0o755)
    return program


def test_a_root_is_made_once(debootstrap: Path) -> None:
    made: list[Path] = []
    threads = [threading.Thread(target=lambda: made.append(roots.root_of("trixie", REPOSITORY))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] == made[1] == roots.root_of("trixie", REPOSITORY)
    assert [entry.name for entry in made[0].iterdir()] == ["usr"]
    (call,) = (debootstrap.parent / "calls").read_text().splitlines()
    assert "slurmctld" in call
    assert call.endswith("http://mirror.invalid/debian")


def test_a_root_that_cannot_be_made_is_said_and_leaves_nothing(debootstrap: Path) -> None:
    debootstrap.write_text("#!/bin/sh\nmkdir $4/usr\necho 'E: Failed getting release file'\necho more\nexit 1\n")
    with pytest.raises(ClusterUnavailable, match="debootstrap sid failed: Failed getting release file"):
        roots.root_of("sid", REPOSITORY)
    assert sorted(entry.name for entry in (debootstrap.parent / "cache").iterdir()) == [".gitignore", "sid.lock"]


def test_a_missing_debootstrap_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(roots.CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(roots, "SYSTEM_PATH", str(tmp_path))
    with pytest.raises(ClusterUnavailable, match="Debian package: debootstrap"):
        roots.root_of("trixie", REPOSITORY)
