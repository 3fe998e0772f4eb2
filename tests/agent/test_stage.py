"""Copies of an environment: packed, moved and reused, with hostile folders, full disks and killed processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_launch.agent import stage
from hpc_launch.agent import stage_environment as disk_module
from hpc_launch.agent import stage_environment as environment
from hpc_launch.agent.stage_environment import NotStaged
from tests.agent.program import program

ROOT = f"hpc-launch-{os.getuid()}"
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a package, a console script and .pth files."""
    env = tmp_path_factory.mktemp("made") / "my env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    (env / SITE / "tiny").mkdir()
    (env / SITE / "tiny" / "__init__.py").write_text("def main(): print('tiny', __file__)\n")
    script = env / "bin" / "tiny"
    script.write_text(f"#!/bin/sh\n'''exec' \"{env}/bin/python3\" \"$0\" \"$@\"\n' '''\nimport tiny; tiny.main()\n")
    script.chmod(0o755)
    (env / SITE / "paths.pth").write_text(f"{env}/src\n/outside/src\nimport sys\n")
    (env / "src").mkdir()
    (env / "stays").symlink_to("src")
    return env


@pytest.fixture
def env(original: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change. Its interpreter finds it by its own path."""
    return Path(shutil.copytree(original, tmp_path / "env", symlinks=True))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A node's disk: everyone may write to it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture(autouse=True)
def _on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pytest's folder is in memory, it stands for a disk."""
    monkeypatch.setattr(disk_module, "MEMORY", frozenset())


def pack(tmp_path: Path, env: Path) -> str:
    return str(stage.pack(str(tmp_path / "store"), str(env)))


def unpack(tmp_path: Path, key: str, *folders: Path) -> tuple[str, str]:
    return stage.on_node(str(tmp_path / "store"), key, list(map(str, folders)))


@pytest.fixture
def key(original: Path, tmp_path: Path) -> str:
    """Of the environment, packed."""
    return pack(tmp_path, original)


def copy_of(disk: Path, key: str) -> Path:
    return disk / ROOT / key / "copy"


# Copies


def test_a_moved_environment_is_its_own_prefix(key: str, tmp_path: Path, disk: Path) -> None:
    assert unpack(tmp_path, key, disk) == ("staged", str(disk / ROOT))
    copy = copy_of(disk, key)
    asked = "import sys, tiny; print(sys.prefix, tiny.__file__, sep='\\n')"
    done = subprocess.run([copy / "bin" / "python3", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == [str(copy), f"{copy}/{SITE}/tiny/__init__.py"]
    assert subprocess.run([copy / "bin" / "tiny"], capture_output=True, text=True, check=True).stdout == (
        f"tiny {copy}/{SITE}/tiny/__init__.py\n"
    )
    assert os.readlink(copy / "stays") == "src"
    assert not (disk / ROOT).stat().st_mode & 0o077


def test_no_path_is_rewritten_in_a_folder_outside_the_environment(env: Path, tmp_path: Path, disk: Path) -> None:
    """A link in its place: the copy has the same link, to the same files."""
    elsewhere = tmp_path / "elsewhere"
    (env / "bin").rename(elsewhere)
    (env / "bin").symlink_to(elsewhere)
    (elsewhere / "tool").write_text(f"#!{env}/bin/python3\n")
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    environment.move(str(env), str(disk / "copy"), str(env))
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", ["link", "line"])
def test_an_environment_that_refers_to_its_neighbour_stays_there(kind: str, env: Path, tmp_path: Path) -> None:
    if kind == "link":
        (env / "src" / "beside").symlink_to("../../beside")
    else:
        (env / SITE / "beside.pth").write_text("../../../../beside\n")
    (env / "inside").symlink_to("src/../src")
    with pytest.raises(NotStaged, match=r"refers to .*/beside, outside the environment"):
        pack(tmp_path, env)


def test_an_environment_with_its_own_python_moves_too(tmp_path: Path, disk: Path) -> None:
    """As of conda: the interpreter is a file of the environment."""
    env, python = tmp_path / "conda", Path(sys.executable).resolve()
    (env / "bin").mkdir(parents=True)
    (env / "lib").mkdir()
    (env / "conda-meta").mkdir()
    shutil.copy2(python, env / "bin" / "python3")
    standard = Path(os.__file__).parent
    (env / "lib" / standard.name).symlink_to(standard)
    key = pack(tmp_path, env)
    assert unpack(tmp_path, key, disk)[0] == "staged"
    words = [str(copy_of(disk, key) / "bin" / "python3"), "-c", "import sys; print(sys.prefix)"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(copy_of(disk, key))


def test_a_copy_is_used_again_without_the_archive_and_made_again_when_a_file_is_gone(
    key: str, tmp_path: Path, disk: Path
) -> None:
    """Bytecode written into it does no harm. Programs that clear temporary folders delete old files."""
    unpack(tmp_path, key, disk)
    package = copy_of(disk, key) / SITE / "tiny"
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tmp_path / "store").rename(tmp_path / "away")
    assert unpack(tmp_path, key, disk) == ("reused", str(disk / ROOT))
    (tmp_path / "away").rename(tmp_path / "store")
    (package / "__init__.py").unlink()
    assert unpack(tmp_path, key, disk)[0] == "staged"
    assert (package / "__init__.py").exists()


def test_an_image_is_copied_as_it_is(tmp_path: Path, disk: Path) -> None:
    image = tmp_path / "an image.sif"
    image.write_bytes(os.urandom(1 << 16))
    key = stage.pack(str(tmp_path / "store"), str(image))
    assert unpack(tmp_path, key, disk)[0] == "staged"
    assert copy_of(disk, key).read_bytes() == image.read_bytes()
    assert unpack(tmp_path, key, disk)[0] == "reused"
    assert sorted(path.suffix for path in (tmp_path / "store").iterdir()) == [".json"], "nothing is packed"


def test_the_archive_that_slurm_put_on_the_disk_is_taken(key: str, tmp_path: Path, disk: Path) -> None:
    asked = (str(tmp_path / "store"), key, [str(disk)])
    assert stage.needs(*asked) == ("needed", str(disk / ROOT))
    (tmp_path / "store" / f"{key}.tar").rename(disk / ROOT / f"{key}.sbcast")
    assert unpack(tmp_path, key, disk)[0] == "staged"
    assert stage.needs(*asked) == ("reused", str(disk / ROOT))
    assert {path.name for path in (disk / ROOT).iterdir()} == {key, f"{key}.lock"}


# Keys


def test_the_key_changes_with_a_file_and_not_with_bytecode(env: Path, tmp_path: Path) -> None:
    before = pack(tmp_path, env)
    assert pack(tmp_path, env) == before
    (env / SITE / "__pycache__").mkdir()
    (env / SITE / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert pack(tmp_path, env) == before
    (env / SITE / "tiny" / "__init__.py").write_text("x = 1\n")
    assert pack(tmp_path, env) != before


# Hostile and broken places


def refused(tmp_path: Path, key: str, *folders: Path) -> str:
    with pytest.raises(NotStaged) as caught:
        unpack(tmp_path, key, *folders)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["link", "open", "foreign"])
def test_a_folder_that_is_not_the_users_own_is_not_used(kind: str, key: str, tmp_path: Path, disk: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    if kind == "link":
        (disk / ROOT).symlink_to(target)
    else:
        (disk / ROOT).mkdir(mode=0o700)
    if kind == "open":
        (disk / ROOT).chmod(0o770)
    elif kind == "foreign" and os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    elif kind == "foreign":
        os.chown(disk / ROOT, 4242, 4242)
    assert "is not a folder that only you can change" in refused(tmp_path, key, disk)
    assert not list(target.iterdir())
    disk.chmod(0o777)  # without the sticky bit others could replace the folder
    assert "others can replace files" in refused(tmp_path, key, disk)


def test_a_link_to_the_disk_is_resolved_and_what_is_above_the_disk_counts(key: str, tmp_path: Path, disk: Path) -> None:
    """Whoever can change the link, or a folder on the way, could put other code there later."""
    link = tmp_path / "link"
    link.symlink_to(disk)
    assert unpack(tmp_path, key, link) == ("staged", str(disk / ROOT))
    (tmp_path / "open" / "inner").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    link.unlink()
    link.symlink_to(tmp_path / "open" / "inner")
    assert f"others can replace files in {tmp_path}/open" in refused(tmp_path, key, link)


def test_a_folder_that_is_missing_or_not_set_leaves_the_next_one(key: str, tmp_path: Path, disk: Path) -> None:
    assert "there is no" in refused(tmp_path, key, tmp_path / "nowhere")
    assert unpack(tmp_path, key, Path("relative"), tmp_path / "nowhere", disk) == ("staged", str(disk / ROOT))


def test_a_damaged_archive_is_not_used(original: Path, tmp_path: Path, disk: Path) -> None:
    key = pack(tmp_path, original)
    archive = tmp_path / "store" / f"{key}.tar"
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    assert refused(tmp_path, key, disk)
    assert [path.suffix for path in (disk / ROOT).iterdir()] == [".lock"], "nothing is left"
    assert pack(tmp_path, original) == key, "an archive of another size is made again"
    assert unpack(tmp_path, key, disk)[0] == "staged"


def test_an_environment_that_does_not_work_elsewhere_is_not_used(env: Path, tmp_path: Path, disk: Path) -> None:
    """Such as one whose interpreter is a script that names the original."""
    python = env / "bin" / "python3"
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec {env}/bin/real "$@"\n')
    python.chmod(0o755)
    (env / "bin" / "real").symlink_to(sys.executable)
    assert "its Python reports the prefix" in refused(tmp_path, pack(tmp_path, env), disk)


def test_an_archive_without_room_is_not_packed(env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "free_bytes", lambda _: 0)
    with pytest.raises(NotStaged, match="has no room"):
        pack(tmp_path, env)


def test_an_environment_on_a_local_disk_stays_there(original: Path, tmp_path: Path) -> None:
    system = disk_module.file_system(str(original))
    assert system in stage.LOCAL, "the tests' folder"
    with pytest.raises(NotStaged, match="on this node's own disk"):
        stage.pack(str(tmp_path / "store"), str(original), shared_only=True)


def test_memory_is_used_only_where_half_stays_free(
    key: str, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = json.loads((tmp_path / "store" / f"{key}.json").read_text())["bytes"]
    monkeypatch.setattr(disk_module, "MEMORY", frozenset({disk_module.file_system(str(disk))}))
    monkeypatch.setattr(disk_module, "free_memory", lambda: 2 * needed - 2)
    assert "half of the free memory" in refused(tmp_path, key, disk)
    monkeypatch.setattr(disk_module, "free_memory", lambda: 2 * needed)
    assert unpack(tmp_path, key, disk)[0] == "staged"


def test_free_memory_is_the_least_of_node_and_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    for limit, expected in (("", 8000), ("0", 8000), ("2", 2048)):
        monkeypatch.setenv("SLURM_MEM_PER_NODE", limit)
        assert disk_module.free_memory(str(tmp_path / "meminfo")) >> 10 == expected


# Several processes


def command(*words: object) -> list[str]:
    return [*program("stage", "-S"), *map(str, words)]


def test_two_jobs_on_a_node_at_once_unpack_one_copy(key: str, tmp_path: Path, disk: Path) -> None:
    words = command("node", tmp_path / "store", key, disk)
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = sorted(one.communicate(timeout=120)[0].split()[0] for one in both)
    assert said == ["reused", "reused", "staged"]
    assert {path.name.split(".")[0] for path in (disk / ROOT).iterdir()} == {key}


def test_what_a_killed_process_left_is_replaced(key: str, tmp_path: Path, disk: Path) -> None:
    words = command("node", tmp_path / "store", key, disk)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tar").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "bin" / "tar").chmod(0o755)
    slow = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    killed = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=slow, start_new_session=True)
    while not list(disk.glob(f"{ROOT}/{key}.tmp*/copy")):
        assert killed.poll() is None
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert list(disk.glob(f"{ROOT}/{key}.tmp*"))
    assert unpack(tmp_path, key, disk)[0] == "staged"
    assert not list(disk.glob(f"{ROOT}/{key}.tmp*"))


@pytest.mark.slow
def test_a_hanging_source_ends_with_the_limit(key: str, tmp_path: Path, disk: Path) -> None:
    (tmp_path / "store" / f"{key}.json").unlink()
    os.mkfifo(tmp_path / "store" / f"{key}.json", 0o600)  # opening it blocks
    began = time.monotonic()
    words = command("node", "--limit=1", tmp_path / "store", key, disk)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("skipped - ")
    assert "it timed out after 1 s" in done.stdout
    assert time.monotonic() - began < 30


# Removal


def age(disk: Path, key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(disk / ROOT / f"{key}.lock", (then, then))


def test_a_copy_in_use_is_not_removed(key: str, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "WAIT_S", 0.3)
    unpack(tmp_path, key, disk)
    user = subprocess.Popen(
        ["bash", "-c", 'exec {fd}<"$0" && flock -s "$fd" && echo held && exec sleep 60', disk / ROOT / f"{key}.lock"],
        stdout=subprocess.PIPE,
    )
    assert user.stdout is not None
    assert user.stdout.readline() == b"held\n"
    stage.remove(key, [str(disk)])
    assert copy_of(disk, key).exists()
    user.kill()
    user.communicate()
    stage.remove(key, [str(disk)], memory_only=True)
    assert copy_of(disk, key).exists()
    stage.remove(key, [str(disk)])
    assert not list((disk / ROOT).iterdir())


def test_a_copy_that_nobody_used_for_a_day_is_removed(env: Path, tmp_path: Path, disk: Path) -> None:
    keys = []
    for number in range(3):
        (env / SITE / "tiny" / "__init__.py").write_text(f"x = {number}\n" * (number + 1))
        keys.append(pack(tmp_path, env))
        unpack(tmp_path, keys[-1], disk)
        if number == 0:
            age(disk, keys[0], 2 * stage.UNUSED_S)
    assert [copy_of(disk, key).exists() for key in keys] == [False, True, True]
