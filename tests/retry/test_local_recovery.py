"""Recovery as a person on this machine sees it: a real job, a real failure, and nobody who types anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.here import launch

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB"


PYTHON = "environment: {python: ./python}\n"
"""In place of torchrun, which takes seconds to start: the words behind the script are all that matters here."""


def write(folder: Path, job: str, train: str) -> None:
    """A project, with an interpreter that starts the script at once, without torchrun."""
    (folder / "train.py").write_text(train)
    (folder / "job.yaml").write_text(f"name: tiny\nsite: local\nlauncher: torchrun\nscript: train.py\n{PYTHON}{job}")
    path = folder / "python"
    path.write_text(f'#!/bin/bash\nwhile [ "${{1##*/}}" != train.py ]; do shift; done\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)


def attempts(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(launch(folder, "status", "@last", "--json").stdout)["attempts"]
    return found


@pytest.mark.slow
def test_out_of_memory_ends_well_with_a_smaller_micro_batch(tmp_path: Path) -> None:
    write(
        tmp_path,
        "args: {micro_batch_size: 8, gradient_accumulation_steps: 2}\n",
        f"import sys\nif int(sys.argv[2]) > 2:\n    sys.exit('{OOM}')\nprint('trained with', sys.argv[1:])\n",
    )

    done = launch(tmp_path, "submit", "job.yaml", "--wait")

    assert done.returncode == 0, done.stdout + done.stderr
    found = attempts(tmp_path)
    assert [(one["class"], one["verdict"]) for one in found] == [
        ("cuda_oom", "RETRY_CHANGED"), ("cuda_oom", "RETRY_CHANGED"), ("success", "NONE"),
    ]  # fmt: skip
    assert found[2]["overrides"]["set"][-2:] == ["args.micro_batch_size=2", "args.gradient_accumulation_steps=8"]
    assert "--micro_batch_size', '2', '--gradient_accumulation_steps', '8'" in launch(tmp_path, "logs", "@last").stdout


def test_the_next_attempt_runs_the_code_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "lib.py").write_text("words = 'as submitted'\n")
    train = (
        "import os, sys, time, lib\n"
        "if os.environ['HPC_LAUNCH_ATTEMPT'] == '1':\n"
        "    while not os.path.exists('go'):\n        time.sleep(0.1)\n"
        "    sys.exit('OSError: [Errno 116] Stale file handle')\n"
        "print('the code is', lib.words)\n"
    )
    write(tmp_path, "retry: {backoff: 1s}\n", train)
    assert launch(tmp_path, "submit", "job.yaml").returncode == 0
    (tmp_path / "lib.py").write_text("words = 'edited'\n")
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "go").touch()

    end = time.monotonic() + 180
    while not (ends := list(tmp_path.glob("runs/*/attempts/002/end.json"))):
        assert time.monotonic() < end
        time.sleep(0.2)

    assert json.loads(ends[0].read_text())["exit_code"] == 0
    assert "the code is as submitted" in launch(tmp_path, "logs", "@last").stdout


PARENT = (
    "import os, sys\n"
    "sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))\n"
    "import lib\nprint('the code is', lib.words)\n"
)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("git", "as submitted"),
        ("job file above", "as submitted"),
        ("no copy", "as edited"),
        ("job file beside the script", None),
    ],
)
def test_a_script_imports_from_parent_folders_as_under_plain_python(
    tmp_path: Path, layout: str, said: str | None
) -> None:
    write(tmp_path, "", "")
    program = tmp_path / "program"
    (program / "train").mkdir(parents=True)
    (program / "lib.py").write_text("words = 'as submitted'\n")
    (program / "train" / "train.py").write_text(PARENT)
    home = {"no copy": tmp_path / "jobs", "job file beside the script": program / "train"}.get(layout, program)
    home.mkdir(exist_ok=True)
    if layout == "git":
        subprocess.run(["git", "init", "-q"], cwd=program, check=True)
        home = program / "train"
    script = os.path.relpath(program / "train" / "train.py", home)
    python = f"environment: {{python: {tmp_path}/python}}\n"
    (home / "job.yaml").write_text(f"name: tiny\nsite: local\nlauncher: torchrun\nscript: {script}\n{python}")
    done = launch(tmp_path, "submit", str(home / "job.yaml"), "--wait")
    if said is None:
        why = launch(tmp_path, "why", "@last").stdout
        assert f"`lib` is in {program}/lib.py, beside the original of the code" in " ".join(why.split())
        assert "code: off" in why
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the code is as submitted" in launch(tmp_path, "logs", "@last").stdout
    assert ("note: the code is not copied into the run" in done.stderr) is (layout == "no copy")
    (program / "lib.py").write_text("words = 'as edited'\n")
    assert launch(tmp_path, "resubmit", "@last", "--wait", "--yes").returncode == 0
    assert f"the code is {said}" in launch(tmp_path, "logs", "@last").stdout


def test_an_edited_job_file_is_said_and_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "", "print('well')\n")
    assert launch(tmp_path, "submit", "job.yaml", "--wait").returncode == 0
    with (tmp_path / "job.yaml").open("a") as stream:
        stream.write("args: {lr: 1}\n")

    done = launch(tmp_path, "resubmit", "@last", "--wait", "--yes")
    while "is not over" in done.stderr:  # the last processes of the first one are just ending
        done = launch(tmp_path, "resubmit", "@last", "--wait", "--yes")

    assert done.returncode == 0, done.stderr
    assert "has changed since" in done.stderr
    assert attempts(tmp_path)[1]["overrides"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGQUIT"])
def test_a_program_gets_the_signals_that_a_shell_lets_background_processes_ignore(tmp_path: Path, name: str) -> None:
    code = f"import os, signal, time; os.kill(os.getpid(), signal.{name}); time.sleep(9)"
    job = {"name": "tiny", "site": "local", "launcher": "none", "command": [sys.executable, "-c", code]}
    (tmp_path / "job.yaml").write_text(json.dumps(job))

    assert launch(tmp_path, "submit", "job.yaml", "--wait").returncode == 1

    classes = {"SIGINT": "cancelled_by_user", "SIGQUIT": "segfault_or_abort"}
    assert [one["class"] for one in attempts(tmp_path)] == [classes[name]]
