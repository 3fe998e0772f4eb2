"""`prune`: what it deletes of runs that are over, and what it never touches, whatever is in their folders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec import structs

from hpc_launch.base.json_records import read_record, write_record
from hpc_launch.plan.recorded_parts import CheckpointPlan
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import PlanRecord
from hpc_launch.service.prune import TOMB, Checkpoints, Prunable, decide, prune, survey
from tests.view.home import HELD, Home, let_go

MIB = 1 << 20
NOW = ("prune", "--older-than", "0s")


def until_final(home: Home, *runs: RunFolder) -> None:
    """Wait for the scheduler to say for good how runs ended; `watch` may know it before."""
    while not all(run.attempt(1).final.exists() for run in runs):
        home.call("list")


def ended(home: Home, *names: str, body: str = "true", folder: str | None = "/checkpoints") -> list[RunFolder]:
    """Runs that are over, with `checkpoint:` in their jobs: `folder` in the run folder, or an absolute one."""
    runs = [home.submit(body, name=name) for name in names]
    home.call("watch", *(run.name for run in runs), code=0 if body == "true" else 1)
    until_final(home, *runs)
    for run in runs if folder is not None else ():
        plan = read_record(run.attempt(1).plan, PlanRecord)
        assert plan is not None
        parts = (None, folder) if str(folder).count("/") == 1 else (folder,)
        rule = CheckpointPlan(dir=parts, pattern=r"step-(\d+)")
        write_record(run.attempt(1).plan, structs.replace(plan, checkpoint=rule))
    return runs


def checkpoint(run: RunFolder, step: int, size: int = MIB, *, folder: str = "checkpoints") -> Path:
    path = run.path / folder / f"step-{step}"
    path.mkdir(parents=True)
    (path / "model.pt").write_bytes(b"x" * size)
    return path


def age(home: Home, run: RunFolder, days: int) -> None:
    """As if it had been submitted and ended earlier."""
    for path in (run.info, run.attempt(1).start, run.attempt(1).end, run.attempt(1).final):
        record = json.loads(path.read_text())
        times = {key: record[key] - days * 86400 for key in ("created", "started", "ended", "as_of") if key in record}
        path.write_text(json.dumps(record | times))
    for path in home.index.folder.glob("*.sqlite"):
        path.unlink()


def found(home: Home, **more: float) -> dict[str, Prunable]:
    return {one.run: one for one in survey(home.index, older_than_s=0, **more)}  # type: ignore[arg-type]


def kept(home: Home, run: RunFolder) -> str:
    """Why a run is not deleted, with `prune --yes` too."""
    rows = {row["run"]: row for row in json.loads(home.call(*NOW, "--yes", "--json").stdout)}
    assert run.path.is_dir()
    assert (rows[run.name]["deletes"], rows[run.name]["deleted"]) == ([], False)
    return str(rows[run.name]["kept"])


def test_it_lists_and_asks_and_says_afterwards_what_happened(home: Home) -> None:
    first, second = ended(home, "first", "second")
    job = home.job_id(first)
    (first.path / "code").mkdir()
    (first.path / "code" / "train.py").write_bytes(b"x" * 3 * MIB)
    done = home.call(*NOW)
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [
        [second.name, "COMPLETED"],
        [first.name, "COMPLETED"],
    ]
    assert "3.0 MiB" in done.stdout
    rows = home.json(*NOW)
    row, frees = rows[1], f"{sum(one['frees'] for one in rows) / MIB:.1f} MiB"
    assert f"nothing is deleted; --yes deletes it, and frees {frees}" in done.stderr
    assert row["deletes"] == [str(first.path)]
    assert (row["code"], row["frees"]) == (3 * MIB, row["code"] + row["logs"])
    assert home.answered(b"n\n", *NOW)[0] == 0
    assert first.path.is_dir(), "neither a pipe nor a `no` deletes"
    code, said = home.answered(b"y\n", *NOW)
    assert (code, f"Delete this, and free {frees}" in said) == (0, True)
    assert list(home.runs.iterdir()) == []
    assert home.json("list") == []
    assert (
        f"error: {first.name} was COMPLETED, and was deleted by `hpc-launch prune` on"
        in home.call("status", first.name, code=2).stderr
    )
    assert "no run is called" in home.call("status", job, code=2).stderr
    assert home.call(*NOW, "-y").stderr == "nothing to delete\n"


def test_only_what_is_asked_for(home: Home) -> None:
    (bad,) = ended(home, "bad", body="exit 1")
    (good,) = ended(home, "good")
    assert home.call("prune", "--yes").stderr == "nothing to delete\n", "30 days by default"
    assert home.call(*NOW[:2], "soon", code=2).stderr.startswith("Usage")
    home.call(*NOW, "--state", "failed", "--yes")
    assert bad.path.exists(), "a driver may still decide that it goes on"
    age(home, bad, 32)
    home.call("prune", "--state", "failed", "--older-than", "33d", "--yes")
    assert bad.path.exists()
    home.call("prune", "--yes")
    assert [path.name for path in home.runs.iterdir()] == [good.name]
    assert "was FAILED, and was deleted" in home.call("status", bad.name, code=2).stderr


def test_a_run_that_lives_or_may_continue_stays(home: Home) -> None:
    running, submitting = home.submit(HELD, name="running"), home.unsubmitted(name="submitting")
    (home.path / "job.yaml").write_text(
        "{name: sweep, site: local, launcher: none, time: 5, hang: false, retry: {max_attempts: 1}, "
        f"command: [sh, -c, 'test $0 = 0 || while [ ! -e {home.path}/go ]; do sleep 0.1; done'], "
        "sweep: {grid: {args: [[0], [1]]}}, checkpoint: {dir: '${run.dir}/checkpoints', pattern: 'step-([0-9]+)'}}"
    )
    sweep = RunFolder(Path(home.json("submit", str(home.path / "job.yaml"))["folder"]))
    (undecided,) = ended(home, "undecided", body="exit 1")
    assert kept(home, undecided) == "it may continue"
    assert {path.name for path in home.runs.iterdir()} == {
        one.path.name for one in (running, submitting, sweep, undecided)
    }
    (home.path / "go").touch()
    let_go(running)
    home.call("watch", running.name, sweep.name)
    point = RunFolder(sweep.path / f"{sweep.name}.1")
    until_final(home, running, point)
    for step in (1, 2):
        checkpoint(point, step)
    home.call(*NOW, "--yes")
    assert {path.name for path in home.runs.iterdir()} == {submitting.name, undecided.name, sweep.name}
    assert [path.name for path in (point.path / "checkpoints").iterdir()] == ["step-2"]


def test_the_newest_complete_checkpoints_stay(home: Home) -> None:
    (run,) = ended(home, "run")
    steps = {step: checkpoint(run, step) for step in (10, 20, 30)}
    torn = checkpoint(run, 40)
    (torn / "model.pt").write_bytes(b"PK\x03\x04 torn")
    rest = run.path / "checkpoints" / f"{TOMB}0123"
    rest.mkdir()
    two = found(home, keep=2)[run.name]
    assert set(two.deletes) == {str(path) for path in (steps[10], torn, rest)}
    assert two.checkpoints >= 3 * MIB
    assert two.frees < 2 * MIB
    assert "step-30 is the newest complete checkpoint" in str(two.kept)
    home.call(*NOW, "--yes")
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == ["step-30"]
    assert home.json("status", run.name)["state"] == "COMPLETED"
    assert home.call(*NOW, "-y").stderr == "nothing to delete\n"


def test_checkpoints_that_other_paths_lead_to_stay(home: Home) -> None:
    user, keeper, linked = ended(home, "user", "keeper", "linked")
    # A run keeps its checkpoints in the folder of another one, and one has links to older ones in its newest.
    mine = checkpoint(keeper, 5, folder="shared")
    plan = read_record(user.attempt(1).plan, PlanRecord)
    assert plan is not None
    elsewhere = CheckpointPlan(dir=(str(mine.parent),), pattern=r"step-(\d+)")
    write_record(user.attempt(1).plan, structs.replace(plan, checkpoint=elsewhere))
    (linked.path / "data").mkdir()
    (linked.path / "checkpoints").symlink_to("data")
    old, new = (checkpoint(linked, step, folder="data") for step in (1, 2))
    (new / "embedding.pt").symlink_to(old / "model.pt")
    rows = found(home)
    assert rows[user.name].deletes == (str(user.path),)
    assert (rows[keeper.name].deletes, rows[linked.name].deletes) == ((), ())
    assert f"newest complete checkpoint of {user.name}" in str(rows[keeper.name].kept)


def test_what_may_be_a_checkpoint_stays(home: Home) -> None:
    (run,) = ended(home, "run", folder=None)
    (run.path / "out").mkdir()
    (run.path / "out" / "model.safetensors").write_bytes(b"x" * MIB)
    assert "out/model.safetensors may be a checkpoint" in kept(home, run)
    (run.path / "out" / "model.safetensors").rename(run.path / "out" / "model")
    for torn in ("{", json.dumps({"checkpoint": {"dir": [None, "/out"], "pattern": "model("}})):
        run.attempt(1).plan.write_text(torn)
        assert "does not tell where its checkpoints are" in kept(home, run)


@pytest.mark.parametrize(
    ("why", "unknown", "deletes"),
    [
        ({}, None, ["/runs/a"]),
        ({}, "model.pt", ["/runs/a/c/1", "/runs/a/c/2"]),
        ({"/runs/b/c/3": "newest"}, None, ["/runs/a"]),
        ({"/runs/a/c/3": "newest"}, None, ["/runs/a/c/1", "/runs/a/c/2"]),
        ({"/runs/a/c/2/links/x": "newest"}, None, ["/runs/a/c/1"]),
        ({"/runs/a/c": "of another run"}, None, []),
        ({"/runs": "of another run"}, None, []),
    ],
)
def test_the_decision(why: dict[str, str], unknown: str | None, deletes: list[str]) -> None:
    checkpoints = Checkpoints(kept={}, above={}, others={"/runs/a": ["/runs/a/c/1", "/runs/a/c/2"]})
    for path, text in why.items():
        checkpoints.keep(path, text)
    decided = decide(Prunable(run="a", state="FAILED", folder="/runs/a"), checkpoints, unknown)
    assert list(decided[0]) == deletes
    assert (decided[1] is None) == (deletes == ["/runs/a"])


def test_links_names_and_hard_links_in_the_folder_lead_nowhere(home: Home, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data").write_bytes(b"x" * MIB)
    (outside / "data").chmod(0o640)
    (run,) = ended(home, "run")
    for name, target in {"link": outside, "file": outside / "data", "up": Path(".."), "gone": Path("/no/such")}.items():
        (run.path / name).symlink_to(target)
    os.link(outside / "data", run.path / "hard\nlink \x1b[31m")
    odd = run.path / os.fsdecode(b"b\xff\n\x1b]0;x")
    (odd / "deeper").mkdir(parents=True)
    os.mkfifo(odd / "pipe")
    (run.path / "checkpoints").symlink_to(outside)
    (outside / "step-1").mkdir()
    (outside / "step-1" / "old.pt").touch()
    (outside / "step-2").mkdir()
    (outside / "step-2" / "model.pt").write_bytes(b"x")
    assert found(home)[run.name].frees < MIB, "what has another link is not freed"
    home.call(*NOW, "--yes")
    assert list(home.runs.iterdir()) == []
    assert sorted(path.name for path in outside.iterdir()) == ["data", "step-1", "step-2"]
    status = (outside / "data").stat()
    assert (status.st_size, status.st_nlink, status.st_mode & 0o777) == (MIB, 1, 0o640)


def test_a_protected_folder_keeps_its_run(home: Home) -> None:
    (run,) = ended(home, "run")
    (run.path / "mine").mkdir()
    (run.path / "mine" / "result").write_text("42")
    (run.path / "mine").chmod(0o555)
    assert "write-protected" in kept(home, run)
    (run.path / "mine").chmod(0o755)
    assert found(home)[run.name].deletes


@contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    """A bind mount; the test is skipped where that is not allowed."""
    target.mkdir()
    if subprocess.run(["mount", "--bind", source, target], check=False, capture_output=True).returncode:
        pytest.skip("this machine allows no bind mounts")
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away and mount")
def test_what_belongs_to_another_user_or_is_mounted_keeps_its_run(home: Home, tmp_path: Path) -> None:
    file, folder, whole, mounted = ended(home, "file", "folder", "whole", "mounted")
    (file.path / "theirs").touch()
    (folder.path / "a" / "theirs").mkdir(parents=True)
    for path in (file.path / "theirs", folder.path / "a" / "theirs", whole.path):
        os.chown(path, 65534, 65534)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data").touch()
    assert "belongs to another user" in kept(home, file)
    assert "belongs to another user" in kept(home, folder)
    assert whole.path.is_dir()
    os.chown(whole.path, 0, 0)
    assert not mounted.path.exists(), "those without an obstacle went"
    (late,) = ended(home, "late")
    with bound(outside, late.path / "mnt"):
        assert "something is mounted there" in kept(home, late)
        assert (outside / "data").exists()


def test_a_link_that_takes_the_place_of_a_folder_meanwhile_leads_nowhere(home: Home, tmp_path: Path) -> None:
    """Somebody who has a folder of the run open swaps what is in it with links while the run is deleted."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for number in range(20):
        (outside / str(number)).touch()
    (run,) = ended(home, "run")
    for number in range(400):
        (run.path / "many" / str(number)).mkdir(parents=True)
        (run.path / "many" / str(number) / "file").touch()
    many = os.open(run.path / "many", os.O_RDONLY)
    swapped, over = set[str](), threading.Event()

    def swap() -> None:
        while not over.is_set():
            for name in os.listdir(many):
                with suppress(OSError):
                    os.rename(name, f"x{name}", src_dir_fd=many, dst_dir_fd=many)
                    os.symlink(outside, name, dir_fd=many)
                    swapped.add(name)

    one = found(home)[run.name]
    thread = threading.Thread(target=swap)
    thread.start()
    for _ in range(20):
        with suppress(OSError):  # the rest has another name, and is found by the next one
            prune(one, home.index)
    over.set()
    thread.join()
    os.close(many)
    assert swapped
    assert len(list(outside.iterdir())) == 20
    assert not run.path.exists() or found(home)[run.name].deletes


def test_a_run_that_goes_on_between_the_look_and_the_deletion_stays(home: Home) -> None:
    (run,) = ended(home, "run")
    before = found(home)[run.name]
    time.sleep(1)  # the times of ends are whole seconds
    home.again(run, HELD)
    for let in (False, True):
        if let:
            (run.attempt(2).path / "go").touch()
            home.call("watch", run.name)
        with pytest.raises(OSError, match="it goes on, or went on"):
            prune(before, home.index)
    assert home.json("status", run.name)["state"] == "COMPLETED"


def test_another_prune_completes_what_a_killed_one_left(home: Home) -> None:
    (run,) = ended(home, "run")
    for number in range(100):
        (run.path / "many" / str(number)).mkdir(parents=True)
        for name in range(50):
            (run.path / "many" / str(number) / str(name)).touch()
    process = home.start(*NOW, "--yes")
    while not list(home.runs.glob(f"{TOMB}*")) and process.poll() is None:
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (rest,) = home.runs.iterdir()
    assert rest.name.startswith(TOMB)
    assert home.json("list") == []
    assert f"{run.name} was COMPLETED, and was deleted" in home.call("status", run.name, code=2).stderr
    (row,) = json.loads(home.call("prune", "--yes", "--json").stdout)
    assert (row["run"], row["state"], row["deleted"]) == (rest.name, None, True)
    assert list(home.runs.iterdir()) == []
