"""One at a time for an image, whichever host it is on and however it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpc_launch.base.errors import UserError
from hpc_launch.prepare.container_images import lock_image
from tests.busy import patience

HOLD = """
import sys, time
from pathlib import Path
from hpc_launch.prepare.container_images import lock_image
with lock_image(Path(sys.argv[1]), lambda text: None):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder_on_this_host_is_noticed_at_once(tmp_path: Path) -> None:
    image = tmp_path / "x.sif"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(image)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.communicate()
    began, said = time.monotonic(), list[str]()
    with lock_image(image, said.append):
        assert time.monotonic() - began < patience(5)
    assert said == ["the lock is stale; taking it over"]
    assert list(tmp_path.iterdir()) == []


def test_a_holder_on_another_host_counts_as_gone_when_it_is_silent(tmp_path: Path) -> None:
    lock = tmp_path / ".x.sif.lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "pid_start": "", "token": "abc123"}))
    said: list[str] = []
    with lock_image(tmp_path / "x.sif", said.append, poll=0.05, stale_after=1.0):
        pass
    assert said[0] == f"waiting: process 1 on elsewhere is writing {tmp_path / 'x.sif'}"


@pytest.mark.parametrize("text", ["", "rubbish", '{"token": "../x"}'])
def test_a_lock_that_nobody_can_read_becomes_stale(text: str, tmp_path: Path) -> None:
    (tmp_path / ".x.sif.lock").write_text(text)
    said: list[str] = []
    with lock_image(tmp_path / "x.sif", said.append, poll=0.05, stale_after=0.3):
        assert any("stale" in one for one in said)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_holder_that_shows_life_is_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / ".x.sif.lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "pid_start": "", "token": "abc123"}))
    over = threading.Event()

    def live() -> None:
        for _ in range(15):
            os.utime(lock)
            time.sleep(0.2)
        lock.unlink()
        over.set()

    thread = threading.Thread(target=live)
    thread.start()
    with lock_image(tmp_path / "x.sif", lambda _: None, poll=0.05, stale_after=1.0):
        assert over.is_set()
    thread.join()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_the_lock_of_another_user_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    lock = tmp_path / ".x.sif.lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "pid_start": "", "token": "abc123"}))
    os.chown(lock, 65534, 65534)
    said: list[str] = []
    with pytest.raises(UserError, match=r"nobody has kept .*/\.x\.sif\.lock") as refused:  # noqa: SIM117
        with lock_image(tmp_path / "x.sif", said.append, poll=0.05, stale_after=60.0, longest=0.2):
            pass
    assert said == [f"waiting: process 1 on elsewhere is writing {tmp_path / 'x.sif'}"]
    assert "another image with -o" in (refused.value.hint or "")


@pytest.mark.parametrize("holder", ["", "abc123"])
def test_a_take_over_that_never_ends_is_not_waited_for_for_ever(holder: str, tmp_path: Path) -> None:
    """A file in the way of the take-over with a time in the future."""
    lock = tmp_path / ".x.sif.lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "pid_start": "", "token": holder}))
    other = tmp_path / f".x.sif.lock.{holder or 'unreadable'}"
    other.touch()
    os.utime(other, (2**31, 2**31))
    with pytest.raises(UserError, match="has kept") as refused:  # noqa: SIM117
        with lock_image(tmp_path / "x.sif", lambda _: None, poll=0.05, stale_after=0.1, longest=0.5):
            pass
    assert f"have {lock}* removed" in (refused.value.hint or "")


def test_of_many_who_wait_for_a_dead_one_only_one_goes_on_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / ".x.sif.lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "pid_start": "", "token": "abc123"}))
    inside, most, lost = [0], [0], threading.Lock()

    def one() -> None:
        with lock_image(tmp_path / "x.sif", lambda _: None, poll=0.02, stale_after=0.5):
            with lost:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.1)
            with lost:
                inside[0] -= 1

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert list(tmp_path.iterdir()) == []
