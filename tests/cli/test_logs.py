from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hpc_launch.runs.layout import RunFolder
from tests.view.home import HELD, TRAINING, Home, let_go
from tests.view.samples import HOSTILE, steers


@pytest.fixture(scope="module")
def over(shared_home: Home) -> Home:
    """A home whose one run is over."""
    shared_home.submit()
    shared_home.call("watch", "@last")
    return shared_home


def logs_of(over: Home, folder: Path, text: bytes) -> tuple[str, ...]:
    """The words that show the log of the first node, once it has this text, of a copy of the run in `folder`."""
    run = RunFolder(shutil.copytree(over.newest().path, folder / "run"))
    (run.attempt(1).logs / "node-0.log").write_bytes(text)
    return "logs", str(run.path), "--node", "0"


def test_the_whole_log_file_after_file(over: Home) -> None:
    lines = over.call("logs", "@last").stdout.splitlines()
    assert lines == [
        f"batch  | batch shell of {over.job_id(over.newest())}",
        *(f"node-0 | [rank0]: step {step}/4 loss 0.{step}" for step in range(1, 5)),
        *(f"node-1 | [rank1]: step {step}/4" for step in range(1, 5)),
    ]


@pytest.mark.parametrize("chosen", [("--node", "1"), ("--node", "n2"), ("--rank", "1"), ("--node", "1", "--rank", "1")])
def test_by_node_and_rank(over: Home, chosen: tuple[str, ...]) -> None:
    lines = over.call("logs", "@last", *chosen).stdout.splitlines()
    assert lines == [f"[rank1]: step {step}/4" for step in range(1, 5)]


def test_what_is_not_there_is_said(over: Home) -> None:
    assert "its nodes are n[1-2]" in over.call("logs", "@last", "--node", "n7", code=2).stderr
    assert "nodes with output: 0, 1" in over.call("logs", "@last", "--node", "2", code=2).stderr
    assert "no attempt 2" in over.call("logs", "@last", "--attempt", "2", code=2).stderr
    done = over.call("logs", "@last", "--rank", "9")
    assert (done.stdout, "has no matching output" in done.stderr) == ("", True)


def test_processes_with_logs_of_their_own(home: Home) -> None:
    home.submit("echo 0 >$dir/logs/node-0.rank-0.log; echo 1 >$dir/logs/node-0.rank-1.log")
    home.call("watch", "@last")
    assert home.call("logs", "@last").stdout.splitlines()[1:] == ["node-0.rank-0 | 0", "node-0.rank-1 | 1"]
    assert len(home.call("logs", "@last", "--node", "0").stdout.splitlines()) == 2
    assert home.call("logs", "@last", "--rank", "1").stdout == "1\n"


def test_one_host_is_all_the_nodes_of_a_local_run(home: Home) -> None:
    home.submit(nodes="here.example")
    home.call("watch", "@last")
    assert len(home.call("logs", "@last", "--node", "here").stdout.splitlines()) == 9


def test_an_earlier_attempt(home: Home) -> None:
    run = home.submit("say 0 'first'")
    home.call("watch", "@last")
    home.again(run, "say 0 'second'")
    home.call("watch", "@last")
    assert "second" in home.call("logs", "@last").stdout
    assert "first" in home.call("logs", "@last", "--attempt", "1").stdout


def test_following_shows_all_and_ends_with_the_run(home: Home) -> None:
    home.submit()
    done = home.call("logs", "@last", "-f", "--rank", "0")
    assert done.stdout.splitlines() == [f"[rank0]: step {step}/4 loss 0.{step}" for step in range(1, 5)]
    assert "completed after" in done.stderr
    again = home.call("logs", "@last", "-f", timeout=60)
    assert len(again.stdout.splitlines()) == 9


def test_following_goes_on_to_what_comes_late(home: Home) -> None:
    run = home.submit(HELD + TRAINING)
    with home.start("logs", "@last", "-f", "--node", "0") as process:
        assert process.stderr is not None
        assert "no output yet: starting" in process.stderr.readline()
        let_go(run)
        out, _ = process.communicate(timeout=180)
    assert len(out.splitlines()) == 4
    assert process.returncode == 0


def test_hostile_lines_cannot_steer(over: Home, tmp_path: Path) -> None:
    text = HOSTILE.encode() + b"\n\xff\xfe 100%\r101%\n\x1b[32mgreen\x1b[0m\n"
    shown = over.call(*logs_of(over, tmp_path, text)).stdout
    assert not steers(shown)
    assert shown.splitlines()[-1] == "green"
    assert "[bold]" in shown


def test_a_narrow_encoding_loses_no_line(over: Home, tmp_path: Path) -> None:
    narrow = Home(over.path, {**over.environment, "PYTHONIOENCODING": "ascii"})
    with narrow.start(*logs_of(over, tmp_path, "größe 図\n".encode())) as process:
        assert process.communicate()[0] == "gr\\xf6\\xdfe \\u56f3\n"


def test_a_reader_that_stops_early_is_no_fault(over: Home, tmp_path: Path) -> None:
    with over.start(*logs_of(over, tmp_path, b"x" * 100 + b"\n" * 200_000)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        # click itself makes 1 of a closed pipe, where it gets to see it.
        assert process.wait(timeout=180) == 0


def test_interrupting_says_how_to_come_back(home: Home) -> None:
    run = home.submit("say 0 here; sleep 60")
    with home.start("logs", "@last", "-f") as process:
        home.interrupt_after(process, process.stdout, "here")
    assert process.returncode == 130
    assert home.json("status", run.name)["state"] == "RUNNING"


def test_completion_of_names(over: Home) -> None:
    asked = {"_HPC_LAUNCH_COMPLETE": "bash_complete", "COMP_WORDS": "hpc-launch logs ti", "COMP_CWORD": "2"}
    home = Home(over.path, {**over.environment, **asked})
    assert home.call().stdout == f"plain,{over.newest().name}\n"
    home.environment["HOME"] = "/dev/null"
    del home.environment["HPC_LAUNCH_HOME"]
    assert home.call().stdout.strip() == ""


def test_completion_of_sites_inserts_no_code(over: Home, tmp_path: Path) -> None:
    """The shell inserts what it completes as it is."""
    for name in ("mine", "mine;touch $HOME${IFS}x;", "mine\033[2J"):
        (tmp_path / f"{name}.yaml").touch()
    asked = {"_HPC_LAUNCH_COMPLETE": "bash_complete", "COMP_WORDS": "hpc-launch sites show mine", "COMP_CWORD": "3"}
    home = Home(over.path, {**over.environment, **asked, "HPC_LAUNCH_SITE_PATH": str(tmp_path)})
    assert home.call().stdout == "plain,mine\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(over: Home, shell: str) -> None:
    script = over.call("completion", shell).stdout
    assert "_HPC_LAUNCH_COMPLETE" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
