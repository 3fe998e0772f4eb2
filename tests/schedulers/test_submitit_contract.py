"""What the bridge relies on in Submitit, and that nothing but the bridge submits."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from submitit.slurm.slurm import SlurmInfoWatcher

from hpc_launch.base.errors import SubmitRefused, SubmitUnknown
from hpc_launch.schedulers.scheduler import Submission
from hpc_launch.schedulers.slurm import submitit_executor

PACKAGE = Path(submitit_executor.__file__).parents[2]
SCRIPT = '#!/bin/bash\necho "ünï → 100%"\n'


def test_a_watcher_keeps_its_jobs_and_their_states_where_it_did() -> None:
    assert {"_registered", "_info_dict"} <= set(vars(SlurmInfoWatcher(delay_s=1)))


def test_the_import_prints_nothing_and_sets_no_log_handler() -> None:
    program = (
        "import hpc_launch.schedulers.slurm.submitit_executor, logging; "
        "logging.getLogger('submitit').info('noise'); "
        "assert not logging.getLogger('submitit').handlers"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("printed", "job_id"),
    [
        ("123", "123"),
        ("123;west", "123"),
        (b"123\n", "123"),
        ("Welcome!\nQuota: 55\n--> ok\n123;west\nBye", "123"),
        ("--> checks\nSubmitted batch job 77 on cluster west", "77"),
        ("12 jobs left\n99", "99"),
    ],
)
def test_the_job_id(printed: str | bytes, job_id: str) -> None:
    assert submitit_executor.ScriptExecutor._get_job_id_from_submission_command(printed) == job_id


@pytest.mark.parametrize("printed", ["", "ok", "job 12", "12 jobs left", "²"])
def test_no_job_id(printed: str) -> None:
    with pytest.raises(submitit_executor.NoJobIdError):
        submitit_executor.ScriptExecutor._get_job_id_from_submission_command(printed)


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that stand for Slurm's, first on PATH; `sbatch` is a test's own to write."""
    programs = tmp_path / "bin"
    programs.mkdir()
    write_program(programs / "srun", "exit 1")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return programs


def write_program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def submission(tmp_path: Path, **more: Any) -> Submission:
    folder = tmp_path / "run 100% \"'$x"
    folder.mkdir()
    return Submission(SCRIPT, folder, "tiny.a1b2.1", **more)


def test_what_sbatch_gets(fake_slurm: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = f'printf "%s\\n" "$@" > {tmp_path}/args; env > {tmp_path}/env; shift 4; cp "$2" {tmp_path}/seen; echo 41'
    write_program(fake_slurm / "sbatch", body)
    one = submission(tmp_path, options=("--exclude=n3",), environment={"TOKEN": "t"})
    job = submitit_executor.submit(one)
    assert job.job_id == "41"
    arguments = (tmp_path / "args").read_text().splitlines()
    log = str(one.folder / "batch.log").replace("%", "%%")
    assert arguments[:5] == [
        *("--parsable", "--job-name=tiny.a1b2.1", f"--output={log}", "--open-mode=append", "--exclude=n3")
    ]
    assert arguments[6] == str(one.folder)
    assert len(arguments) == 7
    assert (tmp_path / "seen").read_bytes() == SCRIPT.encode()
    assert "TOKEN=t\n" in (tmp_path / "env").read_text()
    assert [path.name for path in (one.folder / "submitit").iterdir()] == ["41_submission.sh"]
    # A second process takes it up again by folder and id alone.
    assert (
        submitit_executor.ScriptJob(one.folder / "submitit", "41").paths.submission_file.read_bytes() == SCRIPT.encode()
    )
    assert capfd.readouterr() == ("", "")


def test_a_failing_sbatch_prints_nothing_of_its_own(
    fake_slurm: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_program(fake_slurm / "sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid qos' >&2; exit 1")
    one = submission(tmp_path)
    with pytest.raises(SubmitRefused, match="Invalid qos"):
        submitit_executor.submit(one)
    assert list((one.folder / "submitit").iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_hanging_sbatch_is_ended(fake_slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitit_executor, "SUBMIT_TIMEOUT_S", 1)
    monkeypatch.setattr(submitit_executor, "KILL_AFTER_S", 1)
    write_program(fake_slurm / "sbatch", "trap '' TERM; while :; do sleep 0.1; done")
    with pytest.raises(SubmitUnknown, match="before it answered"):
        submitit_executor.submit(submission(tmp_path))


def test_a_success_without_an_id_is_open(fake_slurm: Path, tmp_path: Path) -> None:
    write_program(fake_slurm / "sbatch", "echo thank you")
    with pytest.raises(SubmitUnknown, match="thank you"):
        submitit_executor.submit(submission(tmp_path))


def test_without_slurm_nothing_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SubmitRefused) as refused:
        submitit_executor.submit(submission(tmp_path))
    assert "login node" in (refused.value.hint or "")


def test_the_variables_of_this_process_come_back(
    fake_slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "p")
    write_program(fake_slurm / "sbatch", '[ -z "$SBATCH_PARTITION" ] && echo 5')
    before = dict(os.environ)
    assert submitit_executor.submit(submission(tmp_path, environment={"TOKEN": "t"})).job_id == "5"
    assert dict(os.environ) == before


def test_other_threads_keep_their_variables_and_their_output_meanwhile(
    fake_slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    write_program(fake_slurm / "sbatch", f"touch {tmp_path}/asked; while [ ! -e {tmp_path}/go ]; do :; done; echo 5")
    one = submission(tmp_path, environment={"TOKEN": "t"})
    with ThreadPoolExecutor() as pool:
        submitted = pool.submit(submitit_executor.submit, one)
        while not (tmp_path / "asked").exists():
            time.sleep(0.01)
        print("of another thread", os.environ["SLURM_JOB_ID"], os.environ.get("TOKEN"))
        (tmp_path / "go").touch()
        assert submitted.result().job_id == "5"
    assert capsys.readouterr() == ("of another thread 7 None\n", "")


STARTS_PROGRAMS = re.compile(
    r"\bsubprocess\b|\brun_program\b|\bos\.(exec|spawn|posix_spawn|system|popen)|\bcommands\.(run|ask)\b"
)


def commands_in(path: Path) -> set[str]:
    """Slurm's commands that stand as a word of their own, or before an option, in a module that can start programs."""
    text = path.read_text()
    if not STARTS_PROGRAMS.search(text):
        return set()
    texts = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    words = [value.split()[:2] for value in texts if isinstance(value, str) and value.split()]
    alone = {first for first, *rest in words if not rest or rest[0].startswith("-")}
    return alone & {"sbatch", "srun", "salloc", "squeue", "sacct", "scontrol", "scancel", "sinfo"}


def test_only_the_bridge_runs_sbatch_and_only_its_package_asks_slurm() -> None:
    found = {path.relative_to(PACKAGE): commands_in(path) for path in PACKAGE.rglob("*.py")}
    assert [path for path, commands in found.items() if "sbatch" in commands] == [
        Path("schedulers/slurm/submitit_executor.py")
    ]
    # Steps in its own job, and a shell in a job and in an allocation.
    starts = {Path("agent/roles.py"), Path("service/live_job.py"), Path("service/allocation.py")}
    asks = {path for path, commands in found.items() if commands}
    assert {path.parent for path in asks - starts} == {Path("schedulers/slurm")}
