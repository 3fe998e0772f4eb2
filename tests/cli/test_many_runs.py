"""`list` with many finished runs: their files are read once, until they get another attempt or are removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.finished_runs import make_finished_runs
from hpc_launch.base.json_records import create_record
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.verdict_record import VerdictRecord
from tests.view.home import Home

COUNT = 200

COUNTED = """
import sys
from hpc_launch.cli.main import main
paths = []
sys.addaudithook(lambda event, args: event in ("open", "os.scandir", "os.listdir") and paths.append(str(args[0])))
try:
    main()
finally:
    print("\\n".join(paths), file=open(ACCOUNT, "w"))
"""


@pytest.fixture(scope="module")
def many(shared_home: Home) -> Home:
    """Half of the runs failed, half completed."""
    names = [shared_home.submit("exit 1", name="bad").name, shared_home.submit("true", name="good").name]
    shared_home.call("watch", *names, code=1)
    verdict = VerdictRecord(action="STOP", failure_class="user_code_error")
    create_record(RunFolder(shared_home.runs / names[0]).attempt(1).verdict, verdict)
    # `watch` may know the end from the job's own record, before the scheduler has said so for good.
    finals = [RunFolder(shared_home.runs / name).attempt(1).final for name in names]
    while not all(path.exists() for path in finals):
        shared_home.call("list")
    make_finished_runs(sorted(shared_home.runs.iterdir()), shared_home.runs, COUNT)
    return shared_home


def opened(home: Home, *words: str) -> list[str]:
    """What a command opens or lists of the folder of runs."""
    account = home.path / "account"
    code = COUNTED.replace("ACCOUNT", repr(str(account)))
    command = [sys.executable, "-c", code, *words]
    subprocess.run(command, env=home.environment, check=True, capture_output=True, cwd=Path(__file__).parents[2])
    return [line for line in account.read_text().splitlines() if line.startswith(str(home.runs))]


def states(home: Home) -> Counter[str]:
    return Counter(row["state"] for row in home.json("list"))


def databases(home: Home) -> list[Path]:
    return list(home.path.glob(".local/state/hpc-launch/*.sqlite"))


@pytest.fixture
def copy(many: Home) -> RunFolder:
    """One of the finished runs, as an index knows it."""
    name = many.json("list", "-n", "20")[-1]["run"]
    return RunFolder(many.runs / name)


def test_a_finished_run_is_read_once(many: Home) -> None:
    for path in databases(many):
        path.unlink()
    assert len(opened(many, "list", "--json")) > COUNT
    for words in (["list"], ["list", "--state", "failed"], ["list", "--json"], ["status"], ["watch"]):
        assert set(opened(many, *words)) <= {str(many.runs)}, words


def test_what_the_index_has_is_what_the_files_say(many: Home) -> None:
    kept = many.json("list")
    for path in databases(many):
        path.unlink()
    read = many.json("list")
    for row in (*kept, *read):
        row["state_age_s"] = round(row["state_age_s"], -2)
    assert kept == read
    assert states(many) == {"COMPLETED": COUNT // 2 + 1, "FAILED": COUNT // 2 + 1}
    failed = many.json("list", "--state", "failed", "-n", "7")
    assert [row["run"] for row in failed] == [row["run"] for row in read if row["state"] == "FAILED"][:7]


def test_a_new_attempt_makes_a_run_unfinished(many: Home, copy: RunFolder) -> None:
    """As seen by a host that has no part in it: the attempt of the run is all that changes."""
    many.json("list")
    attempt = copy.attempt(2).path
    attempt.mkdir()
    try:
        assert copy.name in [row["run"] for row in many.json("status")]
        assert {row["run"]: row["state"] for row in many.json("list", "-n", "20")}[copy.name] == "SUBMITTING"
    finally:
        attempt.rmdir()
    assert copy.name not in [row["run"] for row in many.json("status")]


def test_a_removed_run_and_a_copied_one(many: Home, copy: RunFolder) -> None:
    """The folder of the runs is listed only because it changed, although that was a while ago."""
    many.json("list")
    ago = time.time() - 3600
    os.utime(many.runs, (ago, ago))
    many.json("list")
    assert set(opened(many, "list")) == {str(many.runs)}
    shutil.copytree(copy.path, many.runs / "a-copy")
    shutil.rmtree(copy.path)
    os.utime(many.runs, (ago - 1, ago - 1))
    found = {row["run"]: row["state"] for row in many.json("list")}
    assert copy.name not in found
    assert found["a-copy"] in ("COMPLETED", "FAILED")
    os.rename(many.runs / "a-copy", copy.path)


def test_runs_in_the_default_folder_need_no_state(tmp_path: Path, many: Home) -> None:
    folder = tmp_path / "hpc-launch" / "runs"
    make_finished_runs([next(many.runs.glob("good-*"))], folder, 3)
    environment = {**many.environment, "HOME": str(tmp_path)}
    del environment["HPC_LAUNCH_HOME"]
    assert len(Home(tmp_path, environment).json("list")) == 3
