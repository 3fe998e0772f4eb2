"""The test cluster itself: its environment, what it says where it cannot start, and that it leaves nothing behind.

That it is a real cluster, with real faults, shows in the tests that use it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import Cluster, ClusterUnavailable
from tests.cluster.requirements import PACKAGES, REPOSITORY
from tests.cluster.syscalls import processes_of


def test_the_environment_is_built_from_scratch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_TEST_PROCESS", "1")
    lines = cluster.run(["env"], env={"GIVEN": "2"}, check=True).stdout.splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert names == {"HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH", "GIVEN"}


def assert_nothing_left(folder: Path, manager: int) -> None:
    """No file, process, mount or network interface of a cluster is on this machine."""
    assert not folder.exists()
    assert not Path(f"/proc/{manager}").exists()
    assert processes_of(folder) == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    links = [link.name for link in Path("/sys/class/net").iterdir()]
    assert not [link for link in links if link.startswith("cable-")]


@pytest.mark.cluster
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(PACKAGES, "no-such-daemon", "some-package")
    with pytest.raises(ClusterUnavailable, match=r"needs .*no-such-daemon.*some-package"):
        Cluster.start()


def test_nothing_is_left_after_stop(cluster: Cluster, tmp_path: Path) -> None:
    # Asks for `cluster` only in order to be skipped where there can be none.
    needed = tmp_path / "needed"
    needed.mkdir()
    (needed / "file").write_text("x")
    tmp_path.chmod(0o700)
    with Cluster.start(nodes=1, gpus_per_node=1, accounting=False, needs=[needed]) as own:
        assert own.run(["cat", needed / "file"]).stdout == "x"
        folder, manager = own.layout.root, own.manager
        own.run(["sbatch", "--wrap", "sleep 300"], check=True)
        own.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"], check=True)
        assert processes_of(folder)
    assert_nothing_left(folder, manager)
    own.stop()


@pytest.mark.slow
def test_nothing_is_left_when_the_owner_is_killed(cluster: Cluster) -> None:
    program = (
        "from tests.cluster import Cluster; import time\n"
        "c = Cluster.start(nodes=1, gpus_per_node=0, accounting=False)\n"
        "print(c.manager, flush=True); time.sleep(300)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().split()[2])
    manager = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    end = time.monotonic() + 30
    while (folder.exists() or processes_of(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    assert_nothing_left(folder, manager)
