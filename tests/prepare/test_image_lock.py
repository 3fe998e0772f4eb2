"""One at a time for an image, however it ends."""

from __future__ import annotations

import fcntl
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


def test_a_holder_is_waited_for_until_it_is_killed(tmp_path: Path) -> None:
    image = tmp_path / "x.sif"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(image)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    began, said = time.monotonic(), list[str]()
    threading.Timer(0.5, holder.kill).start()
    with lock_image(image, said.append):
        assert 0.5 <= time.monotonic() - began < patience(5)
    holder.communicate()
    assert said == [f"waiting: another process is writing {image}"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_the_lock_of_another_user_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    lock = tmp_path / ".x.sif.lock"
    with lock.open("w") as stream:
        os.chown(lock, 65534, 65534)
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"nobody has kept .*/\.x\.sif\.lock") as refused:  # noqa: SIM117
            with lock_image(tmp_path / "x.sif", lambda _: None, longest=0.2):
                pass
    assert "another image with -o" in (refused.value.hint or "")


def test_of_many_who_wait_only_one_goes_on_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpc_launch.prepare.container_images.POLL_S", 0.02)
    inside, most, lost = [0], [0], threading.Lock()

    def one() -> None:
        with lock_image(tmp_path / "x.sif", lambda _: None):
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
