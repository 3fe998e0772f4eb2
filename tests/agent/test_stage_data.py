"""Data for the nodes: real tars, images, folders and shards, copied, reused, followed and refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from hpc_launch.agent import stage, stage_data
from hpc_launch.agent import stage_environment as disk_module
from hpc_launch.agent.stage_environment import NotStaged
from tests.agent.program import program

ROOT = f"hpc-launch-{os.getuid()}"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data. Where pytest's folder is in memory, it stands for a disk."""
    monkeypatch.setattr(disk_module, "MEMORY", frozenset())
    for number in range(5):
        path = tmp_path / "data" / "inner" / f"part-{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1000 + number))
    return tmp_path / "data"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A node's disk: everyone may write to it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(0o1777)
    return tmp_path / "disk"


def command(*words: object) -> subprocess.CompletedProcess[str]:
    done = [*program("stage", "-S"), *map(str, words)]
    return subprocess.run(done, capture_output=True, text=True, timeout=60, check=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def archive(data: Path, name: str, *options: str) -> Path:
    subprocess.run(["tar", *options, "-cf", data.parent / name, "-C", data, "."], check=True)
    return data.parent / name


@pytest.mark.parametrize(
    ("name", "option"),
    [("d.tar", ""), ("d.tar.gz", "-z"), ("d.tar.zst", "--zstd"), ("d.txz", "-J"), ("data of 2026", "-j"), ("data", "")],
)
def test_an_archive_or_a_folder_is_unpacked_on_the_node_and_used_again(
    name: str, option: str, data: Path, tmp_path: Path, disk: Path
) -> None:
    """The name of an archive does not count. A lost file is noticed, and then it is copied again."""
    source = data if name == "data" else archive(data, name, *([option] if option else []))
    key, from_where, by = command("pack", "--data=auto", tmp_path / "store", source).stdout.splitlines()
    assert from_where == str(tmp_path / "store" / f"{key}.tar" if name == "data" else source)
    said = [command("node", f"--record={tmp_path / 'record'}", tmp_path / "store", key, disk).stdout for _ in range(2)]
    root = disk / ROOT
    assert [line.split()[0] for line in said] == ["staged", "reused"]
    assert said[0].split()[1] == str(root)
    assert said[0].split()[-2:] == [os.uname().nodename, key]
    lock, copy, mounted_by, folder = (tmp_path / "record").read_text().splitlines()
    assert (lock, by, mounted_by, folder) == (f"{root}/{key}.lock", "", "", str(root))
    assert contents(Path(copy)) == contents(data)
    (Path(copy) / "inner" / "part-3.bin").unlink()
    assert command("node", tmp_path / "store", key, disk).stdout.startswith("staged ")


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="no mksquashfs")
@pytest.mark.parametrize("how", ["auto", "mount", "copy"])
@pytest.mark.parametrize("inside", [False, True])
def test_an_image_is_mounted_where_it_is_or_from_its_copy(
    how: str, inside: bool, data: Path, tmp_path: Path, disk: Path
) -> None:
    image = tmp_path / "data of 2026"
    subprocess.run(["mksquashfs", data, image, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
    packed = command("pack", f"--data={how}", *(["--inside"] if inside else []), tmp_path / "store", image)
    key, from_where, by = packed.stdout.splitlines()
    assert (from_where, by) == (str(image) if how == "copy" else "", "image" if inside else "node")
    said = command("node", f"--record={tmp_path / 'record'}", tmp_path / "store", key, disk).stdout
    assert said.split()[0] == ("staged" if how == "copy" else "mounted")
    _, path, again, folder = (tmp_path / "record").read_text().splitlines()
    assert (again, folder) == (by, str(disk / ROOT))
    assert Path(path).read_bytes() == image.read_bytes()
    assert (path != str(image)) == (how == "copy")


def test_each_node_gets_every_nth_file(data: Path, tmp_path: Path, disk: Path) -> None:
    (tmp_path / "data" / "more").mkdir()
    (tmp_path / "data" / "more" / "part-0.bin").write_text("another of this name")
    key = command("pack", "--data=auto", "--shards=2", tmp_path / "store", f"{data}/*/*.bin").stdout.split()[0]
    shares = []
    for node in range(2):
        assert command("node", tmp_path / "store", f"{key}-{node}", disk).stdout.startswith("staged ")
        shares.append(contents(disk / ROOT / f"{key}-{node}" / "copy"))
    assert [sorted(share) for share in shares] == [
        ["inner/part-0.bin", "inner/part-2.bin", "inner/part-4.bin"],
        ["inner/part-1.bin", "inner/part-3.bin", "more/part-0.bin"],
    ]
    assert {**shares[0], **shares[1]} == contents(data)
    command("remove", f"{key}-0", disk)
    assert {path.name.split(".")[0] for path in (disk / ROOT).iterdir()} == {f"{key}-1"}


@pytest.mark.parametrize(
    ("options", "name", "why"),
    [
        (["--data=auto", "--shards=6"], "inner/*.bin", "matches 5 files, and each of 6 nodes needs one"),
        (["--data=mount"], "inner/part-0.bin", "is not a squashfs image, so it cannot be mounted"),
        (["--data=auto"], "inner/part-9.bin", "No such file or directory"),
    ],
)
def test_what_no_node_could_use_is_refused_before_any_copies(
    options: list[str], name: str, why: str, data: Path, tmp_path: Path
) -> None:
    done = command("pack", *options, tmp_path / "store", data / name)
    assert done.returncode == 1
    assert done.stdout.startswith("skipped - ")
    assert why in done.stdout


def test_a_file_that_is_no_archive_or_changes_is_not_staged(data: Path, tmp_path: Path, disk: Path) -> None:
    plain = data / "inner" / "part-0.bin"
    key = stage.pack_data(str(tmp_path / "store"), str(plain), "auto", 0, False)
    assert "This does not look like a tar archive" in command("node", tmp_path / "store", key, disk).stdout
    tar = archive(data, "d.tar")
    key = stage.pack_data(str(tmp_path / "store"), str(tar), "auto", 0, False)
    os.utime(tar, (1, 1))
    said = command("node", tmp_path / "store", key, disk).stdout
    assert said == f"skipped - {os.uname().nodename}: {tar} changed while it was copied\n"
    assert {path.suffix for path in (disk / ROOT).iterdir()} == {".lock"}, "nothing is left"


def test_a_line_every_few_seconds_says_how_much_of_the_archive_was_read(
    data: Path, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The archive arrives slowly through a decompressor: the first half, and later the rest."""
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "gzip"
    wait = 'until [ -e "$GO" ]; do sleep 0.05; done'
    slow.write_text(f"#!/bin/bash\ndd bs=1 count=2 of=/dev/null; dd bs=1000 count=300; {wait}; cat\n")
    slow.chmod(0o755)
    tar = tmp_path / "d.tar.gz"
    (data / "large").write_bytes(b"x" * 900_000)
    plain = archive(data, "d.tar").read_bytes()
    tar.write_bytes(b"\x1f\x8b" + plain)  # copying stands for gzip
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    monkeypatch.setattr(stage_data, "EVERY_S", 0.2)
    key = stage.pack_data(str(tmp_path / "store"), str(tar), "auto", 0, False)
    threading.Timer(1.0, (tmp_path / "go").touch).start()
    stage_data.progress.start(30)
    assert stage.on_node(str(tmp_path / "store"), key, [str(disk)])[0] == "staged"
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("copying - ")]
    assert len(lines) >= 3
    words = rf"copying - {re.escape(os.uname().nodename)}: {re.escape(str(tar))}, 0\.[34] MiB of 0\.9 MiB \([34]\d %\)"
    assert all(re.fullmatch(words, line) for line in lines[:3]), lines


def test_an_input_that_stops_is_given_up(tmp_path: Path, disk: Path, data: Path) -> None:
    tar = archive(data, "d.tar")
    key = stage.pack_data(str(tmp_path / "store"), str(tar), "auto", 0, False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tar").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "bin" / "tar").chmod(0o755)
    done = subprocess.run(
        [*program("stage", "-S"), "node", "--limit=0.5", str(tmp_path / "store"), key, str(disk)],
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.endswith("it timed out after 0 s\n")


def test_a_copy_that_another_job_is_to_use_is_not_removed(
    data: Path, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job may have found it complete, and start its training later."""
    key = stage.pack_data(str(tmp_path / "store"), str(archive(data, "d.tar")), "auto", 0, False)
    for job in ("7", "8"):
        monkeypatch.setenv("HPC_LAUNCH_JOB_ID", job)
        stage.on_node(str(tmp_path / "store"), key, [str(disk)])
    copy = disk / ROOT / key / "copy"
    monkeypatch.setenv("HPC_LAUNCH_JOB_ID", "7")
    stage.remove(key, [str(disk)])
    assert copy.exists()
    monkeypatch.setenv("HPC_LAUNCH_JOB_ID", "8")
    stage.remove(key, [str(disk)])
    assert not copy.exists()


def test_a_pattern_that_matches_too_little_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotStaged, match="matches 0 files, and each of 2 nodes needs one"):
        stage_data.files_of(f"{tmp_path}/*.tar", 2)
