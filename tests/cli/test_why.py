from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.runs import artifacts
from hpc_launch.runs.collect_evidence import diagnose_files, rulebook
from tests.forked import hpc_launch
from tests.here import launch
from tests.view.home import Home

OOM = "step 1 loss 2.0\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def call(*words: str, text: str | bytes = "") -> subprocess.CompletedProcess[bytes]:
    data = text if isinstance(text, bytes) else text.encode()
    return hpc_launch(["why", *words], env=os.environ, input=data)


def test_a_log_as_json(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text(OOM)
    done = call("--log", str(log), "--json")
    assert (done.returncode, done.stderr) == (1, b"")
    assert json.loads(done.stdout) == {
        "level": "workload",
        "class": "cuda_oom",
        "cause": "cuda_oom",
        "verdict": "RETRY_CHANGED",
        "confidence": "high",
        "first_failure": {"node": None, "rank": 3, "time": None},
        "evidence": [{"file": str(log), "line": 2, "text": OOM.splitlines()[1]}],
        "also": [],
        "advice": json.loads(done.stdout)["advice"],
    }


def test_a_log_in_words(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text(OOM.replace("[rank3]", "\x1b]0;evil\x07[rank3]"))
    done = call("--log", str(log))
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "cuda_oom, confidence high"
    assert f"  {log}:2" in lines
    assert b"\x1b" not in done.stdout
    assert any(line.startswith("  verdict    RETRY_CHANGED") for line in lines)


def test_a_hole_in_a_log_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "HEAD", 1 << 20)
    monkeypatch.setattr(artifacts, "TAIL", 1 << 20)
    log = tmp_path / "slurm-1.out"
    log.write_text("step 1 loss 2.0\n")
    with log.open("r+b") as stream:
        stream.truncate(100 << 30)
        stream.seek(0, 2)
        stream.write(OOM.encode())
    begun = time.process_time()
    found = diagnose_files([str(log)], rulebook(), io.BytesIO())
    assert (found.failure_class, found.evidence[0].line) == ("cuda_oom", 3)
    assert time.process_time() - begun < 5


NO_END = "more than {} MiB without an end; write it to a file first"


@pytest.mark.prove  # a gibibyte; a few MiB are refused below
@pytest.mark.slow
def test_input_without_an_end_is_refused_in_bounded_memory() -> None:
    limits = "ulimit -v 1500000; exec timeout 300 hpc-launch why --log -"
    command = ["bash", "-c", f"cat /dev/zero | ({limits})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: cannot read -: {NO_END.format(1024)}" in done.stderr


@pytest.mark.parametrize("command", [["yes"], ["tr", "\\0", "a"]])
def test_lines_without_an_end_are_refused(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "LONGEST_PIPE", 4 << 20)
    with open("/dev/zero", "rb") as zeros, subprocess.Popen(command, stdin=zeros, stdout=subprocess.PIPE) as endless:
        assert isinstance(endless.stdout, io.BufferedReader)
        with pytest.raises(OSError, match=NO_END.format(4)):
            diagnose_files(["-"], rulebook(), endless.stdout)
        endless.kill()


def test_a_silent_writer_of_a_pipe_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "SILENT_MS", 100)
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(writer, OOM.encode())
    assert diagnose_files([str(tmp_path / "pipe")], rulebook(), io.BytesIO()).cause == "cuda_oom"
    os.close(writer)


def test_stdin_and_several_files(tmp_path: Path) -> None:
    assert json.loads(call("--log", "-", "--json", text=OOM).stdout)["evidence"][0]["file"] == "stdin"
    one, two = tmp_path / "a.log", tmp_path / "b.log"
    one.write_text("[rank0]: RuntimeError: NCCL error: unhandled system error\n")
    two.write_text("[rank1]: KeyError: 'x'\n")
    for words in (["--log", str(one), str(two)], ["--log", str(one), "--log", str(two)]):
        found = json.loads(call(*words, "--json").stdout)
        assert (found["class"], found["first_failure"]["rank"]) == ("user_code_error", 1)
        assert found["also"]


def test_exit_codes(tmp_path: Path) -> None:
    assert call("--log", "-", text="step 1/2 loss 2\nstep 2/2 loss 1\nTraining completed.\n").returncode == 0
    assert call("--log", "-", text="").returncode == 1
    for words in ([], ["a", "b"], ["--log", str(tmp_path / "none.log")], ["nobody"]):
        done = call(*words)
        assert done.returncode == 2, words
        assert done.stdout == b""
        assert b"hint: " in done.stderr


def test_a_log_that_was_named_as_a_run_is_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "slurm 1.out"
    log.write_text(OOM)
    done = call(str(log))
    assert done.returncode == 2
    assert f"hint: to diagnose a log file, run `hpc-launch why --log '{log}'`" in done.stderr.decode()


def test_a_broken_rule_is_said_and_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tmp_path / "hpc-launch" / "rules"
    rules.mkdir(parents=True)
    (rules / "mine.yaml").write_text("- [")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = call("--log", "-", "--json", text=OOM)
    assert json.loads(done.stdout)["class"] == "cuda_oom"
    assert b"HL690 warning" in done.stderr


def test_a_run(home: Home) -> None:
    run = home.submit("say 0 'step 1/4 loss 1'; say 0 'ValueError: bad value'; exit 3")
    home.call("watch", "@last", code=1)
    found: dict[str, Any] = json.loads(home.call("why", "@last", "--json", code=1).stdout)
    assert (found["class"], found["verdict"]) == ("user_code_error", "STOP")
    assert found["evidence"][-1]["text"].endswith("ValueError: bad value")
    assert found["evidence"][-1]["file"].startswith("logs/node-0")
    words = home.call("why", run.name, "--attempt", "1", code=1).stdout
    assert "user_code_error" in words
    assert "has no attempt 7" in home.call("why", run.name, "--attempt", "7", code=2).stderr


def test_a_run_that_ended_well(home: Home) -> None:
    home.submit()
    home.call("watch", "@last")
    assert json.loads(home.call("why", "@last", "--json", code=0).stdout)["class"] == "success"


def test_the_verdict_is_the_one_that_was_made(tmp_path: Path) -> None:
    """With `retry: 1` nothing follows, whatever is usual for the class."""
    (tmp_path / "train.py").write_text(
        "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity)')\n"
    )
    job = {"name": "oom", "site": "local", "launcher": "none", "retry": 1, "time": 5}
    (tmp_path / "job.yaml").write_text(json.dumps({**job, "command": f"{sys.executable} train.py"}))

    assert launch(tmp_path, "submit", "job.yaml", "--wait").returncode == 1
    found = json.loads(launch(tmp_path, "why", "@last", "--json").stdout)
    assert (found["class"], found["verdict"]) == ("cuda_oom", "STOP")
    limit, _, cure = found["advice"].partition(". What would help: ")
    assert "no change is left to try" in limit
    assert cure
