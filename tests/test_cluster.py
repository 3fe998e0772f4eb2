"""The test cluster itself: its environment, what it says where it cannot start, and that it leaves nothing behind.

That it is a real cluster, with real faults, shows in the tests that use it.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster import Cluster
from tests.cluster.syscalls import processes_of


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
    assert not folder.exists()
    assert not Path(f"/proc/{manager}").exists()
    assert processes_of(folder) == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    links = [link.name for link in Path("/sys/class/net").iterdir()]
    assert not [link for link in links if link.startswith("cable-")]
    own.stop()
