"""The lease of a run on a host: who gets it, who is named, and when it expires."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import pytest

from hpc_launch.agent import lease
from tests.cluster.faults import wait_until


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lease, "FOLDER", str(tmp_path))
    monkeypatch.setattr(lease, "EXPIRES_S", 2.0)


def write(folder: Path, job: str, age: float = 0.0, **values: object) -> Path:
    path = folder / f"{lease.PREFIX}{os.uname().nodename}.{os.getuid()}.{job}"
    path.write_text(json.dumps({"run": "other", "job_id": job, "since": time.time() - 60, **values}))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_a_lease_that_is_not_renewed_expires(tmp_path: Path) -> None:
    write(tmp_path, "ssh-1", age=5)
    assert lease.Lease("b", "ssh-2").taken_by() is None


def test_a_free_host_is_got_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SETTLE_S", 60.0)
    begin = time.monotonic()
    assert lease.Lease("a", "ssh-1").taken_by() is None
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("kept", [False, True])
def test_of_jobs_that_begin_together_at_most_one_gets_the_host(kept: bool) -> None:
    """Exactly one, unless another process lets nobody have a turn."""
    with lease.turn() if kept else contextlib.nullcontext():
        reader, writer = os.pipe()
        for number in range(8):
            if os.fork() == 0:
                got = lease.Lease(f"run-{number}", f"ssh-{number}").taken_by() is None
                os.write(writer, b"1" if got else b"0")
                os._exit(0)  # the lease stays
        for _ in range(8):
            os.wait()
        assert os.read(reader, 100).count(b"1") in ((0, 1) if kept else (1,))
        os.close(reader)
        os.close(writer)


def test_a_process_that_lets_nobody_have_a_turn_keeps_no_host() -> None:
    with lease.turn():
        assert lease.Lease("a", "ssh-1").taken_by() is None


def test_the_previous_attempt_of_the_run_is_waited_for(tmp_path: Path) -> None:
    path = write(tmp_path, "ssh-1", run="b")
    begin = time.monotonic()
    assert lease.Lease("b", "ssh-2").taken_by() is None
    assert time.monotonic() - begin > 1
    assert path.exists()


HOSTILE = ['{"since": 1e999}', '{"since": NaN}', '{"since": -1e300}', '{"since": %s}' % ("9" * 3000), "[" * 4000, "["]


def test_what_is_no_lease_holds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "ssh-1", since="x")
    write(tmp_path, "ssh-3").unlink()
    os.mkfifo(tmp_path / f"{lease.PREFIX}{os.uname().nodename}.0.ssh-4")
    (tmp_path / f"{lease.PREFIX}{os.uname().nodename}.0.ssh-5").symlink_to(tmp_path / "nothing")
    (tmp_path / f"{lease.PREFIX}{os.uname().nodename}.0.ssh-6").mkdir()
    write(tmp_path, "ssh-7").write_text("[" * 4096)
    write(tmp_path, "ssh-8", age=-3600)
    assert list(lease.holders()) == []
    for number, text in enumerate(HOSTILE):
        write(tmp_path, f"ssh-{number}0").write_text(text.replace("}", ', "run": "a", "job_id": "b"}'))
    assert all(0 < one.since <= time.time() for one in lease.holders())
    assert lease.main(["mine"]) == lease.main(["--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out.splitlines()[-1]), list)


def test_a_lease_that_a_logout_removed_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.05)
    own = lease.Lease("a", "ssh-1")
    os.unlink(own.path)
    wait_until(lambda: any(lease.holders()), 60)
    own.release()


def test_no_one_else_knows_the_name_of_a_lease_in_advance() -> None:
    names = set()
    for _ in range(2):
        own = lease.Lease("a", "ssh-1")
        names.add(own.path)
        own.release()
    assert len(names) == 2


def test_the_words_of_others_are_printable(tmp_path: Path) -> None:
    write(tmp_path, "ssh-1", run="a\x1b[31m\n" + "x" * 1000)
    (holder,) = lease.holders()
    assert str(holder).isprintable()
    assert len(holder.run) == 100
