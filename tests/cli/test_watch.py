from __future__ import annotations

import fcntl
import itertools
import os
import pty
import re
import shutil
import signal
import struct
import termios
import time
from collections.abc import Callable

import pytest

from hpc_launch.schedulers.local import local_jobs
from hpc_launch.schedulers.local.local_scheduler import LocalScheduler
from tests.busy import patience
from tests.marks import prove
from tests.view.home import HELD, LONG, TRAINING, Home, let_go
from tests.view.samples import steers


def test_to_a_good_end(home: Home) -> None:
    run = home.submit()
    done = home.call("watch", run.name)
    assert done.stdout == "", "what is shown is no data"
    assert f"{run.name} COMPLETED after" in done.stderr
    assert "step 4/4, loss 0.4" in done.stderr
    assert f"{run.path}/attempts/001/logs" in done.stderr
    assert f"hpc-launch logs {run.name}" in done.stderr
    assert not steers(done.stderr)


def test_to_a_bad_end(home: Home) -> None:
    home.submit("say 0 'Traceback: no'; exit 7")
    done = home.call("watch", "@last", code=1)
    assert "FAILED" in done.stderr
    assert "| Traceback: no" in done.stderr
    assert "hpc-launch resubmit" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("verb", [("watch",), prove(("logs", "-f"))])
def test_a_run_folder_that_is_deleted_ends_it(home: Home, verb: tuple[str, ...]) -> None:
    run = home.submit(LONG)
    with home.start(*verb, run.name) as process:
        stream = process.stderr if verb == ("watch",) else process.stdout
        assert stream is not None
        stream.readline()  # it has seen the run
        for entry in local_jobs.entries():  # no job writes into the folder any more
            LocalScheduler().cancel(entry.job_id)
        while run.path.exists():  # its last processes may still write
            shutil.rmtree(run.path, ignore_errors=True)
        _, err = process.communicate(timeout=patience(60))
    assert process.returncode == (1 if verb == ("watch",) else 0), err
    assert f"the run folder {run.path} no longer exists: it was moved or deleted" in err
    assert "began to submit" not in err
    assert not run.path.exists()


@pytest.mark.slow
def test_the_end_shows_within_three_seconds_and_nothing_is_silent_for_five(home: Home) -> None:
    run = home.submit("say 0 'step 1/9'; sleep 11")
    times = [time.time()]
    with home.start("watch", "@last") as process:
        assert process.stderr is not None
        for _ in process.stderr:
            times.append(time.time())
        seen = time.time()
        assert process.wait(timeout=180) == 0
    ended = (run.attempt(1).end).stat().st_mtime
    assert seen - ended < patience(3)
    assert max(after - before for before, after in itertools.pairwise(times)) < patience(5)


def test_without_a_name_all_that_are_under_way(home: Home) -> None:
    good, bad = home.submit(HELD, name="good"), home.submit(HELD + "exit 2", name="bad")
    with home.start("watch") as process:
        assert process.stderr is not None
        said = process.stderr.readline() + process.stderr.readline()
        let_go(good)
        let_go(bad)
        said += process.stderr.read()
        assert process.wait(timeout=180) == 1
    assert f"{good.name}: completed after" in said
    assert f"{bad.name}: failed after" in said
    assert f"{bad.name} FAILED after" in said
    assert f"{good.name} COMPLETED after" not in said, "the table says enough of those that went well"


def test_nothing_to_watch(home: Home) -> None:
    assert "no active runs" in home.call("watch").stderr


def test_interrupting_leaves_the_job_running(home: Home) -> None:
    run = home.submit(LONG)
    with home.start("watch", "@last") as process:
        shown = home.interrupt_after(process, process.stderr, "running")
    assert process.returncode == 130
    assert f"the job keeps running; follow again with: hpc-launch watch {run.name}" in shown
    assert home.json("status", run.name)["state"] == "RUNNING"


def in_terminal(home: Home, *words: str, at: tuple[str, Callable[[int], object]] | None = None) -> tuple[str, int]:
    """What a command writes to a terminal of 90 columns, and its exit code. `at`: what to do when it wrote a word."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(home.command()[0], home.command(*words), home.environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    output = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux says EIO when the other side is closed
            break
        output += data
        if at is not None and at[0].encode() in output:
            at[1](child)
            at = None
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return output.decode(), os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore:.*forkpty:DeprecationWarning")
def test_on_a_terminal_it_is_live(home: Home) -> None:
    run = home.submit(HELD + TRAINING)
    text, code = in_terminal(home, "watch", "@last", at=("Ctrl-C stops", lambda _: let_go(run)))
    assert code == 0
    assert re.search(r"step \d/4, loss 0\.\d", text)
    assert "Ctrl-C stops watching; the job keeps running" in text
    assert "\x1b[?25h" in text.rsplit("COMPLETED", 1)[0], "the cursor is back before the summary"


@pytest.mark.filterwarnings("ignore:.*forkpty:DeprecationWarning")
def test_interrupted_on_a_terminal(home: Home) -> None:
    run = home.submit(LONG)
    text, code = in_terminal(home, "watch", "@last", at=("1%", lambda pid: os.kill(pid, signal.SIGINT)))
    assert code == 130
    assert text.endswith(f"follow again with: hpc-launch watch {run.name}\r\n")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")
