"""Copies of a run on hosts that share no folders. `ssh` runs the command here, with other folders at the same paths."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hpc_launch.agent.copies import output_lines
from hpc_launch.agent.folders import NotOwnError, TooLargeError, prepare, run_files, workdir_files
from tests.agent.program import program
from tests.busy import patience
from tests.cluster.faults import wait_until

SSH = """\
#!/bin/bash
# HOST is the word after --: `first` shares the folders of this machine, `other` has its own.
[[ " $* " != *" -O exit "* ]] || exit 0
for word; do case $word in first|other|noisy) host=$word; break ;; esac; shift; done
shift
[[ $host == first ]] || words=(unshare --mount bash -c 'mount --bind {there} {here} && exec bash -c "$0"')
[[ $host != noisy ]] || echo Welcome
exec "${{words[@]:-bash}}" ${{words:+"$*"}} ${{words:--c "$*"}}
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder and, beside it, a working folder."""
    run = tmp_path / "here" / "runs" / "r"
    for name in ("hooks/a.py", "code/train.py", "attempts/001/node.sh", "attempts/001/batch.log", "attempts/001/.x"):
        (run / name).parent.mkdir(exist_ok=True, parents=True)
        (run / name).write_text(name)
    (run / "attempts" / "001" / "logs").mkdir()
    (run / "attempts" / "001" / "logs" / "node-0.log").touch()
    work = tmp_path / "here" / "work"
    (work / "data").mkdir(parents=True)
    (work / "data" / "words").write_text("some words")
    (work / "run.sh").write_text("echo")
    (work / "run.sh").chmod(0o777)
    (work / "link").symlink_to("data")
    for name in (".env", "id_rsa", "a.pyc", "big.bin"):
        (work / name).touch()
    return run


def test_what_hosts_get(run: Path) -> None:
    attempt, work = run / "attempts" / "001", run.parents[1] / "work"
    (attempt / "claim").touch()
    assert run_files(str(run), str(attempt)) == ["hooks/a.py", "code/train.py", "attempts/001/node.sh"]
    (run / "run.json").touch()
    (run / "elsewhere.json").touch()
    assert run_files(str(run), str(attempt), whole=True)[2:] == [
        "run.json",
        *(f"attempts/001/{name}" for name in ("claim", "node.sh")),
    ]
    assert workdir_files(str(work), ["big*"], 1000, str(run)) == ["data/words", "link", "run.sh"]
    with pytest.raises(TooLargeError, match=r"more than 0 MiB: list what is not code in `code.exclude`"):
        workdir_files(str(work), [], 5, "")


def test_a_copy_goes_into_no_folder_that_others_can_change(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (str(run), str(run / "attempts" / "001"), "token", "", "")
    run.mkdir()
    run.chmod(0o775)
    with pytest.raises(NotOwnError, match="only you can change"):
        prepare(*words)
    run.rmdir()
    tmp_path.chmod(0o777)
    with pytest.raises(NotOwnError, match="others can replace"):
        prepare(*words)
    tmp_path.chmod(0o755)
    with pytest.raises(NotOwnError, match=r"create it, or set `code: {copy_workdir: true}`"):
        prepare(*words[:3], f"{tmp_path}/missing", "")
    assert prepare(*words).startswith("ready")


def test_the_time_of_the_last_output_reaches_the_other_host_unless_that_wrote_later(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        (folder / "agent").mkdir(parents=True)
    output, there = one / "agent" / "last-output", two / "agent" / "last-output"
    assert output_lines(str(one)) == ""
    output.touch()
    os.utime(output, (time.time() - 20, time.time() - 20))
    subprocess.run(["bash", "-c", output_lines(str(one))], cwd=two, check=True)
    assert time.time() - there.stat().st_mtime == pytest.approx(22, abs=2)
    there.touch()
    later = there.stat().st_mtime
    subprocess.run(["bash", "-c", output_lines(str(one))], cwd=two, check=True)
    assert there.stat().st_mtime == later


@pytest.mark.parametrize("host", ["other", "noisy"])  # by tar, as what the login prints would break rsync
def test_a_host_gets_its_copy_and_what_it_writes_comes_back(host: str, run: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    if subprocess.run(
        ["unshare", "--mount", "mount", "--bind", there, here], capture_output=True, check=False
    ).returncode:
        pytest.skip("cannot mount a folder")
    (tmp_path / "ssh").write_text(SSH.format(here=here, there=there))
    (tmp_path / "ssh").chmod(0o755)
    attempt = run / "attempts" / "001"
    other = there / attempt.relative_to(here)
    (attempt / "environment").write_text("export SECRET=1\n")
    words = [*program("copies"), "--copy-workdir=1000", "--exclude=big*", str(attempt), f"{here}/work", "first", host]
    copies = subprocess.Popen(
        words, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, stdout=subprocess.PIPE, text=True
    )
    assert copies.stdout is not None
    try:
        assert copies.stdout.readline() == "ready\n"
        assert sorted(path.name for path in (there / "work").iterdir()) == ["data", "link", "run.sh"]
        assert os.readlink(there / "work" / "link") == "data"
        assert (there / "work" / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (other / "environment").exists()
        assert not list((other / "logs").iterdir())
        for folder in (attempt, other):
            (folder / "stop").write_text(f"of {folder}\n")

        (other / "logs" / "ranks-of-node-1" / "none_x").mkdir(parents=True)
        (other / "logs" / "ranks-of-node-1" / "none_x" / "stdout.log").write_text("mine\n")
        (other / "logs" / "node-0.log").write_text("of another node\n")
        (other / "logs" / "node-1.log").write_text("a\n")
        (other / "agent" / "nccl-rank-1").symlink_to(tmp_path / "ssh")
        (attempt / "ending").touch()
        (other / "agent" / "hang.json").write_text('{"rank": 1}')
        log = attempt / "logs" / "node-1.log"
        wait_until(lambda: log.exists() and log.read_text() == "a\n")
        wait_until(lambda: (other / "ending").exists() and (attempt / "agent" / "hang.json").exists())
        assert (attempt / "agent" / "hang.json").read_text() == '{"rank": 1}'
        wait_until((attempt / "agent" / "last-output").exists)
        for folder in (attempt, other):
            assert (folder / "stop").read_text() == f"of {folder}\n", "the first one stays"
        assert (attempt / "logs" / "ranks-of-node-1" / "none_x" / "stdout.log").read_text() == "mine\n"
        assert (attempt / "logs" / "node-0.log").read_text() == ""
        assert not (attempt / "agent" / "nccl-rank-1").exists()

        (attempt / "node.sh").write_text("changed")
        copies.send_signal(signal.SIGUSR2)
        assert copies.stdout.readline() == "ready\n"
        assert (other / "node.sh").read_text() == "changed"

        with (other / "logs" / "node-1.log").open("a") as file:
            file.write("end\n")
        (other / "logs" / "node-1.exit").write_text("3\n")
        copies.send_signal(signal.SIGUSR1)
        assert copies.wait(patience(30)) == 0
        assert (log.read_text(), (attempt / "logs" / "node-1.exit").read_text()) == ("a\nend\n", "3\n")
        assert not (other / "environment").exists()
        assert (attempt / "environment").exists()
    finally:
        copies.kill()
        copies.communicate()
