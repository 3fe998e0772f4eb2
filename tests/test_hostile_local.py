"""A hundred job files with hostile values, through the reader, the template and a real bash on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.script.parts import RUNTIME, runtime
from tests.hostile import COUNT, Hostile, hostile_jobs
from tests.marks import prove

STUB = f"""#!{sys.executable} -SE
import json, os, sys
seen = {{"words": sys.argv[1:], "env": dict(os.environ)}}
with open(os.environ["HPC_LAUNCH_ATTEMPT_DIR"] + "/seen.json", "w") as stream:
    json.dump(seen, stream)
"""
"""Stands in for the interpreter, so that torch is not imported a hundred times: all else is as in any local run."""


@pytest.mark.slow
@pytest.mark.parametrize("count", [25, prove(COUNT)])
def test_hostile_values_reach_the_training_byte_for_byte(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_LAUNCH_HOME", str(tmp_path / "runs"))
    stub = tmp_path / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    train = tmp_path / "it's $(a) trap; train.py"
    train.touch()
    jobs = list(hostile_jobs(count))
    for job in jobs:
        (tmp_path / f"{job.number}.yaml").write_text(
            job.job_file(script=train.name, launcher="torchrun", environment={"python": str(stub)}), encoding="utf-8"
        )

    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / RUNTIME).write_text(runtime())
    scripts = [prepare_job(tmp_path / f"{job.number}.yaml", site="local").script for job in jobs]

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda pair: _run(tmp_path, *pair), zip(jobs, scripts, strict=True)))
    for job, (words, env) in zip(jobs, seen, strict=True):
        assert words[words.index(str(train)) + 1 :] == job.words, job.number
        assert {name: env.get(name) for name in job.env} == job.env, job.number
    assert len(seen) == count


def _run(folder: Path, job: Hostile, script: str) -> tuple[list[str], dict[str, str]]:
    attempt = folder / "attempts" / f"{job.number:03d}"
    attempt.mkdir(parents=True)
    file = attempt / "script.sh"
    file.write_text(script, encoding="utf-8", newline="")
    # In a locale of its own now and then: how a script is read must not depend on the user's.
    locale = ("C.UTF-8", "C", "POSIX")[job.number % 3]
    done = subprocess.run(
        ["bash", str(file), str(attempt)],
        cwd=folder,
        env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": "1", "HPC_LAUNCH_JOB_ID": str(job.number)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((attempt / "seen.json").read_text())
    return data["words"], data["env"]
