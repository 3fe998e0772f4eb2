"""A virtual environment copied to the nodes' own disks: unpacked once on each, and used again by the next attempt."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.faults import wait_until
from tests.slurm.user import User

LOCAL = "/srv"
SITE = f"paths: {{local: {{path: {LOCAL}, node_local: true}}}}\n"
PROGRAM = (
    "import os, sys, tiny\n"
    "print('USES', sys.prefix, tiny.__file__, os.environ['VIRTUAL_ENV'], flush=True)\n"
    "if os.environ['HPC_LAUNCH_ATTEMPT'] == '1':\n"
    "    sys.exit('OSError: [Errno 116] Stale file handle: /scratch/corpus/part-7.bin')\n"
)


def environment(user: User) -> Path:
    """A virtual environment with one package, of the ordinary user."""
    folder = user.home / "my env"
    user.cluster.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    user.job("WHERE = __file__\n", f"my env/lib/{version}/site-packages/tiny/__init__.py")
    return folder


@pytest.fixture
def disks(user: User) -> Iterator[None]:
    """A disk of its own for each of two nodes; their other private folders are in memory."""
    for node in ("n1", "n2"):
        folder = user.cluster.scratch / f"disk-of-{node}"
        user.cluster.run(["install", "-d", "-m", "1777", str(folder)], user="root", check=True)
        user.cluster.node_exec(node, ["mount", "--bind", str(folder), LOCAL]).check_returncode()
    yield
    for node in ("n1", "n2"):
        user.cluster.node_exec(node, ["umount", LOCAL])


@pytest.mark.usefixtures("disks")
def test_the_next_attempt_on_the_same_nodes_copies_nothing(user: User) -> None:
    user.site(SITE)
    keys = {
        "name": "staged",
        "launcher": "srun",
        "nodes": 2,
        "processes_per_node": 2,
        "sbatch": {"nodelist": "n1,n2"},
        "environment": {"venv": str(environment(user)), "python": "python3", "stage": "node"},
        "command": ["python3", "-c", PROGRAM],
        "retry": {"backoff": "1s"},
    }
    run = user.submit(json.dumps(keys), env={"HPC_LAUNCH_BROADCAST_FROM": "2"})
    folder = Path(run["folder"])
    wait_until((folder / "attempts" / "002" / "end.json").exists)
    said = [(folder / "attempts" / number / "batch.log").read_text() for number in ("001", "002")]
    assert user.until(run["run"], "COMPLETED")["state"] == "COMPLETED", said
    assert "staged: copied to 2 nodes, reused on 0; 0 use the original" in said[0]
    assert "staged: copied to 0 nodes, reused on 2; 0 use the original" in said[1]
    assert (folder / "attempts" / "001" / "stage.needs").read_text().count("needed ") == 2
    stage_log = (folder / "attempts" / "001" / "stage.log").read_text().splitlines()
    assert sum(line.startswith("staged ") for line in stage_log) == 2, stage_log
    assert not any(line.startswith("sbcast:") for line in stage_log), stage_log
    used = re.findall(r"USES (.*)", user.launch("logs", "@last", "--attempt", "2").stdout)
    root = f"{LOCAL}/hpc-launch-{user.cluster.uid}/"
    assert len(used) == 4, said
    assert all(line.count(root) == 3 for line in used), used
    for node in ("n1", "n2"):
        left = user.cluster.node_exec(node, ["ls", root]).stdout
        assert "copy" not in left, "removed after the last attempt"
        assert left.split() == [], left


READS = (
    "import os, pathlib\n"
    "data = pathlib.Path(os.environ['HPC_LAUNCH_DATA'])\n"
    "names = sorted(str(path.relative_to(data)) for path in data.rglob('*') if path.is_file())\n"
    "print('READS', os.environ['SLURMD_NODENAME'], data.parent.parent, ' '.join(names), flush=True)\n"
)


@pytest.mark.usefixtures("disks")
@pytest.mark.parametrize("shard", [False, True], ids=["whole", "shards"])
def test_each_node_gets_all_of_the_data_or_its_share(shard: bool, user: User) -> None:
    user.site(SITE)
    for number in range(3):
        user.job(f"words {number}\n", f"corpus/part-{number}")
    user.cluster.run(["tar", "-cf", f"{user.home}/corpus.tar", "-C", f"{user.home}/corpus", "."], check=True)
    data = {"from": "corpus/part-*", "shard": True} if shard else "corpus.tar"
    keys = {
        "name": "fed",
        "launcher": "srun",
        "nodes": 2,
        "processes_per_node": 1,
        "sbatch": {"nodelist": "n1,n2"},
        "command": ["python3", "-c", READS],
        "data": data,
        "preflight": "off",
    }
    log = user.completed(user.job(json.dumps(keys)), env={"HPC_LAUNCH_BROADCAST_FROM": "2"})
    read = dict(re.findall(rf"READS (n\d) {LOCAL}/hpc-launch-{user.cluster.uid} (.*)", log))
    everything = "part-0 part-1 part-2"
    assert read == ({"n1": "part-0 part-2", "n2": "part-1"} if shard else {"n1": everything, "n2": everything}), log
    (attempt,) = user.home.glob("runs/fed-*/attempts/001")
    assert "data: copied to 2 nodes, reused on 0, mounted on 0 of 2" in (attempt / "batch.log").read_text()
    assert not any(line.startswith("sbcast:") for line in (attempt / "data.log").read_text().splitlines())
    assert shard or (attempt / "stage.needs").read_text().count("needed ") == 2
    for node in ("n1", "n2"):
        assert user.cluster.node_exec(node, ["ls", f"{LOCAL}/hpc-launch-{user.cluster.uid}"]).stdout.split() == []
