"""Which commands a round of queries takes, with programs in place of Slurm's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpc_launch.schedulers.slurm import query_jobs

JOBS = query_jobs.MANY + 1


@pytest.fixture
def sacct_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in place of squeue and sacct; the file that has a line for each call of sacct."""
    for name in ("squeue", "sacct"):
        program = f'#!/bin/sh\necho {name} >>{tmp_path}/"{name}.calls"\ncat {tmp_path}/{name}.out\n'
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sacct.out").write_text("JobID|State|ExitCode|DerivedExitCode\n")
    calls = tmp_path / "sacct.calls"
    calls.write_text("")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return calls


def queue(folder: Path, state: str, ended_s: float) -> None:
    """What squeue prints: the first job has ended, the others run."""
    stamps = [time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - ago)) for ago in (900, 800, ended_s)]
    lines = [f"1|{state}|None|0|0|{'|'.join(stamps)}|n1|a"]
    lines += [f"{number}|RUNNING|None|0|0|{stamps[0]}|{stamps[1]}|N/A|n1|a" for number in range(2, JOBS + 1)]
    (folder / "squeue.out").write_text("\n".join(lines) + "\n")


def asked(calls: Path, jobs: int) -> tuple[str, bool]:
    """The state of the first job by a round about so many jobs, and whether sacct was asked about any."""
    before = calls.read_text()
    records = query_jobs.ask(map(str, range(1, jobs + 1)), {})
    return next(one.state for one in records if one.job_id == "1"), calls.read_text() != before


def test_of_many_jobs_those_that_completed_wait_for_one_query_of_the_accounting(sacct_calls: Path) -> None:
    queue(sacct_calls.parent, "COMPLETED", 10)
    assert asked(sacct_calls, JOBS) == ("COMPLETING", False)
    assert asked(sacct_calls, 3) == ("COMPLETED", True)
    queue(sacct_calls.parent, "COMPLETED", query_jobs.DETAILS_S + 5)
    assert asked(sacct_calls, JOBS) == ("COMPLETED", True)
    queue(sacct_calls.parent, "FAILED", 10)
    assert asked(sacct_calls, JOBS) == ("FAILED", True)
