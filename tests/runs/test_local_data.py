"""Data of real jobs on this machine: what the training finds, and what is left when an attempt ends in any way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.busy import patience
from tests.here import launch

LIST = 'cd "$HPC_LAUNCH_DATA" && find . -type f | sort; df --output=fstype . | tail -n 1'
WAIT = 'cd "$HPC_LAUNCH_DATA" && echo "$$ $PPID" >"$HPC_LAUNCH_ATTEMPT_DIR/up" && exec sleep 600'


def write(folder: Path, data: object, command: str) -> None:
    """A project with a folder of data, a tar and an image of it. The node-local folder is one of the test."""
    for number in range(3):
        path = folder / "corpus" / "inner" / f"part-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"words {number}\n")
    subprocess.run(["tar", "-czf", folder / "corpus.tar.gz", "-C", folder / "corpus", "."], check=True)
    if data == "corpus.sqsh":
        pack = ["mksquashfs", "corpus", "corpus.sqsh", "-quiet", "-no-progress"]
        subprocess.run(pack, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    disk = folder / "disk"
    disk.mkdir()
    paths = {"disk": {"path": str(disk), "node_local": True}}
    site = {"name": "here", "scheduler": "local", "node_classes": {"here": {"cpus": 1, "gpus": 0}}, "paths": paths}
    site["queues"] = {"here": {"node_class": "here", "memory": "omit"}}
    (folder / "here.yaml").write_text(json.dumps(site))
    job = {"name": "fed", "site": "./here.yaml", "launcher": "none", "command": ["bash", "-c", command], "data": data}
    (folder / "job.yaml").write_text(json.dumps({**job, "retry": {"max_attempts": 1}}))


def mounts(folder: Path) -> list[str]:
    """Where the jobs of this test have mounted an image that is still mounted."""
    (log,) = folder.glob("runs/*/attempts/001/data.log")
    mounted = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return [words[1] for line in log.read_text().splitlines() if (words := line.split())[1] in mounted]


def left(folder: Path) -> list[str]:
    """What a job has left on the disk."""
    return sorted(path.name for path in (folder / "disk").glob("*/*"))


PROGRAMS = ("mksquashfs", "squashfuse", "fusermount3")
can_mount = pytest.mark.skipif(
    not os.access("/dev/fuse", os.W_OK) or None in map(shutil.which, PROGRAMS),
    reason="no access to /dev/fuse, or no squashfuse",
)


@pytest.mark.parametrize(
    ("data", "said", "mounted"),
    [
        ("corpus.tar.gz", "copied to 1 nodes, reused on 0, mounted on 0 of 1", False),
        ("corpus", "copied to 1 nodes, reused on 0, mounted on 0 of 1", False),
        ({"from": "corpus/*/part-*", "shard": True}, "copied to 1 nodes, reused on 0, mounted on 0 of 1", False),
        pytest.param("corpus.sqsh", "copied to 0 nodes, reused on 0, mounted on 1 of 1", True, marks=can_mount),
    ],
    ids=["tar", "folder", "shards", "image"],
)
def test_the_training_finds_its_data_and_nothing_is_left(
    data: object, said: str, mounted: bool, tmp_path: Path
) -> None:
    write(tmp_path, data, LIST)
    done = launch(tmp_path, "submit", "job.yaml", "--wait")
    log = launch(tmp_path, "logs", "@last", "--node", "0").stdout
    (batch,) = tmp_path.glob("runs/*/attempts/001/batch.log")
    assert done.returncode == 0, done.stdout + batch.read_text()
    prefix = "./" if isinstance(data, dict) else "./inner/"
    *files, system = log.splitlines()
    assert files == [f"{prefix}part-{number}" for number in range(3)]
    assert system.startswith("fuse") == mounted
    assert f"data: {said}, see {batch.parent}/data.log" in batch.read_text()
    assert (mounts(tmp_path), left(tmp_path)) == ([], [])


def test_an_archive_that_no_node_can_unpack_ends_the_run_before_the_training(tmp_path: Path) -> None:
    write(tmp_path, "corpus.tar", LIST)
    (tmp_path / "corpus.tar").write_text("no tar")
    done = launch(tmp_path, "submit", "job.yaml", "--wait")
    assert done.returncode == 1
    (attempt,) = json.loads(launch(tmp_path, "status", "@last", "--json").stdout)["attempts"]
    assert (attempt["class"], attempt["verdict"]) == ("data_error", "STOP")
    assert "This does not look like a tar archive: no training was started" in attempt["evidence"][0]["text"]
    assert not list(tmp_path.glob("runs/*/attempts/001/logs/*"))
    assert left(tmp_path) == [name for name in left(tmp_path) if name.endswith(".lock")]


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="no mksquashfs")
def test_a_node_that_cannot_mount_an_image_ends_the_run_with_its_name(tmp_path: Path) -> None:
    write(tmp_path, "corpus.sqsh", LIST)
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in map(Path, reversed(os.environ["PATH"].split(os.pathsep))):
        for path in folder.iterdir() if folder.is_dir() else ():
            if not path.name.startswith("squashfuse"):
                (programs / path.name).unlink(missing_ok=True)
                (programs / path.name).symlink_to(path)
    assert launch(tmp_path, "submit", "job.yaml", "--wait", PATH=str(programs)).returncode == 1
    (attempt,) = json.loads(launch(tmp_path, "status", "@last", "--json").stdout)["attempts"]
    assert (attempt["class"], attempt["verdict"]) == ("data_error", "STOP")
    node, image = os.uname().nodename, f"{tmp_path}/corpus.sqsh"
    assert (
        f"data not staged: {node}: no squashfuse, which mounts {image}: no training" in attempt["evidence"][0]["text"]
    )


def test_a_folder_that_cannot_be_copied_is_read_where_it_is(tmp_path: Path) -> None:
    write(tmp_path, "corpus", LIST)
    (tmp_path / "corpus" / "beside").symlink_to("nowhere")
    (tmp_path / "runs").mkdir()
    (tmp_path / f"runs/.staged-{os.getuid()}").write_text("in the place of the folder for archives")
    done = launch(tmp_path, "submit", "job.yaml", "--wait")
    (batch,) = tmp_path.glob("runs/*/attempts/001/batch.log")
    assert done.returncode == 0, batch.read_text()
    assert f"data: {tmp_path}/corpus is read where it is: " in batch.read_text()
    assert "./inner/part-2\n" in launch(tmp_path, "logs", "@last").stdout


@can_mount
@pytest.mark.slow
@pytest.mark.parametrize("killed", ["the training", "the script", "cancelled"])
def test_an_image_is_unmounted_however_the_attempt_ends(killed: str, tmp_path: Path) -> None:
    write(tmp_path, "corpus.sqsh", WAIT)
    assert launch(tmp_path, "submit", "job.yaml").returncode == 0
    end = time.monotonic() + patience(20)
    while not (ready := [path.read_text() for path in tmp_path.glob("runs/*/attempts/001/up")]) or not ready[0]:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert len(mounts(tmp_path)) == 1
    if killed == "cancelled":
        assert launch(tmp_path, "cancel", "@last").returncode == 0
    else:
        os.kill(int(ready[0].split()[killed == "the script"]), signal.SIGKILL)
    while mounts(tmp_path):
        assert time.monotonic() < end, left(tmp_path)
        time.sleep(0.1)
