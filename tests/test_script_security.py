"""Attacks on the job script by other users of a node, of a folder or of a name. docs/evidence/threats.md has each."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hpc_launch.script.parts import part
from tests.acl import GROUP_OBJ, OTHERS, USER_OBJ, set_default_acl
from tests.agent.program import archive, program
from tests.marks import prove


def bash(text: str, *, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a shell line by line, with the messages of the script."""
    program = f"set -u\n{part('messages')}\n{text}"
    return subprocess.run(
        ["bash", "-c", program], cwd=folder, capture_output=True, text=True, timeout=120, check=False, umask=0o022
    )


# --- Restart in the same job ---


def test_another_job_on_the_node_is_not_what_is_left_of_this_one(tmp_path: Path) -> None:
    """sbatch exports the variables of the training that submits it."""
    environ = {"PATH": os.environ["PATH"], "HPC_LAUNCH_ATTEMPT_DIR": str(tmp_path)}
    other, left = (subprocess.Popen(["sleep", "60"], env={**environ, "SLURM_JOB_ID": job_id}) for job_id in ("8", "7"))
    try:
        words = [*program("job_processes"), "end", str(tmp_path)]
        environ |= {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "HPC_LAUNCH_ATTEMPT_DIR": ""}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert left.wait(10) == -9
        assert other.poll() is None
        assert done.stdout.endswith(" none\n"), done.stdout + done.stderr
    finally:
        for process in (other, left):
            process.kill()
            process.wait()


# --- Rendezvous ---


@contextmanager
def listening(address: str, count: int) -> Iterator[tuple[int, int]]:
    """Listen at `count` ports in a row; gives the first and the last."""
    first = next(port for port in range(20000, 30000, count) if _is_free(port, count))
    with ExitStack() as stack:
        for port in range(first, first + count):
            stack.enter_context(socket.create_server((address, port)))
        yield first, first + count - 1


def _is_free(first: int, count: int) -> bool:
    try:
        with ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("", port)))
    except OSError:
        return False
    return True


def choose(first: int, last: int, address: str = "127.0.0.1", job_id: int = 1) -> subprocess.CompletedProcess[str]:
    rendezvous = f"job_rendezvous() {{ MASTER_ADDR={address}; choose_port {first} {last}; }}"
    return bash(f"job_id={job_id} restart=0 hosts=()\n{rendezvous}\n{part('rendezvous')}\necho $MASTER_PORT")


def test_no_port_is_chosen_at_which_somebody_listens() -> None:
    """The ranks would unpickle what the other process sends, in the job's name."""
    with listening("", 30) as (first, last):
        done = choose(first, last)
        assert done.returncode == 1
        assert f"no free port between {first} and {last}" in done.stderr
        assert choose(first, last + 1).stdout.split()[-1] == str(last + 1)


def test_the_address_that_others_connect_to_is_asked_too() -> None:
    with listening("127.0.0.3", 4) as (first, last):
        assert choose(first, last).returncode == 0
        assert choose(first, last, "127.0.0.3").returncode == 1


def test_nobody_can_tell_the_port_from_the_job_s_id() -> None:
    chosen = {choose(10000, 29999).stdout.split()[-1] for _ in range(4)}
    assert len(chosen) > 1
    assert all(10000 <= int(port) <= 29999 for port in chosen)


# --- Folders ---


def start_by_hand(runs: Path) -> subprocess.CompletedProcess[str]:
    parts = part("in_place") + part("attempt")
    return bash(f"job_id=7 job_by_hand={runs}/tiny-by-hand\n{parts}\necho $attempt_dir $run_dir")


def test_a_script_started_by_hand_makes_its_folder_and_finds_it_after_a_requeue(tmp_path: Path) -> None:
    run = tmp_path / "new" / "runs" / "tiny-by-hand-7"
    for _ in range(2):
        done = start_by_hand(run.parent)
        assert done.stdout == f"{run}/attempts/001 {run}\n", done.stderr
    assert (run / "attempts" / "001").is_dir()


@pytest.mark.parametrize("kind", ["foreign", "open", "link", "file"])
def test_a_script_started_by_hand_uses_no_folder_of_another_user(kind: str, tmp_path: Path) -> None:
    """In a shared folder with the sticky bit, others may make it first, with a pipe for a file that is sourced."""
    run = tmp_path / "tiny-by-hand-7"
    if kind == "link":
        (tmp_path / "other").mkdir()
        run.symlink_to(tmp_path / "other")
    elif kind == "file":
        run.touch()
    else:
        run.mkdir()
        if kind == "open":
            run.chmod(0o777)
        elif os.getuid() == 0:
            os.chown(run, 65534, 65534)
        else:
            pytest.skip("only root can give files away")
    done = start_by_hand(tmp_path)
    assert done.returncode == 1
    assert "other users can change it" in done.stderr
    assert not list(tmp_path.rglob("attempts"))


@pytest.mark.parametrize(
    ("mode", "owner", "group", "works"),
    [
        (0o777, 0, 0, False),
        (0o1777, 65534, 0, False),
        (0o1777, 0, 0, True),
        (0o2775, 65534, 0, True),
        (0o2775, 65534, 65534, False),
    ],
    ids=["open to all", "of another user and open", "like /tmp", "of the own group", "of another group"],
)
def test_a_script_started_by_hand_looks_at_the_folders_above(
    mode: int, owner: int, group: int, works: bool, tmp_path: Path
) -> None:
    """As `submit` does. Whoever can rename a folder above can put another script in the place of the run's."""
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    above = tmp_path / "open" / "team"
    above.mkdir(parents=True)
    above.parent.chmod(0o1777)
    os.chown(above, owner, group)
    above.chmod(mode)
    for runs in (above, above / "runs"):
        done = start_by_hand(runs)
        assert (done.returncode == 0) == works, done.stderr
        assert works or "another user can replace" in done.stderr


def test_a_script_started_by_hand_is_not_opened_by_a_default_acl(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    set_default_acl(runs, (USER_OBJ, 7, -1), (GROUP_OBJ, 7, -1), (OTHERS, 5, -1))
    done = start_by_hand(runs)
    opened = [path for path in runs.rglob("*") if path.stat().st_mode & 0o022]
    assert opened == [] if done.returncode == 0 else "other users can change it" in done.stderr


# --- Nodes ---


@pytest.mark.parametrize(("phase", "code"), [("environment", 1), ("stage", 1), ("check", 0), ("ended", 0)])
def test_a_script_that_ends_before_its_training_is_no_success(phase: str, code: int, tmp_path: Path) -> None:
    """By `exit 0` in a file that the job sources. `doctor` has a job that ends after its check."""
    given = f"attempt_dir={tmp_path} job_id=7 restart=0 nodes=n1\nnow() {{ echo 1; }}\n"
    given += "saved_checkpoint() { :; }\ncall_after() { :; }\n"
    done = bash(f"{given}{part('records')}\nphase={phase}\nexit 0")
    assert done.returncode == code, done.stderr
    assert json.loads((tmp_path / "end.json").read_text())["exit_code"] == code


@pytest.mark.parametrize(("starts", "code"), [("false", 0), ("true", 1)])
def test_a_step_that_started_nothing_is_no_success(starts: str, code: int, tmp_path: Path) -> None:
    """As with `srun --mpi=list`, which prints its plug-ins."""
    (tmp_path / "logs").mkdir()
    given = f"attempt_dir={tmp_path}\nstart_nodes() {{ {starts} || : >{tmp_path}/logs/node-0.log; }}"
    done = bash(f'{given}\n{part("step_srun")}\n{part("end_srun")}\nexit "$code"')
    assert done.returncode == code, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("level", ["", prove("--full")])
def test_the_node_check_runs_no_code_of_the_current_folder(level: str, tmp_path: Path) -> None:
    """Slurm starts a step in /tmp on a node without the working folder: anybody can put a module there."""
    evil, run = tmp_path / "tmp", tmp_path / "run"
    evil.mkdir()
    for name in ("ast", "torch", "json", "importlib"):
        (evil / f"{name}.py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')\n")
    (run / "hooks").mkdir(parents=True)
    shutil.copy(archive(), run / "hooks")
    attempt = run / "attempts" / "001"
    attempt.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    given = (
        f"export HPC_LAUNCH_RUN_DIR={run} HPC_LAUNCH_ATTEMPT_DIR={attempt} SLURMD_NODENAME=n1 SLURM_NODEID=0\n"
        f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} TMPDIR={run}\n"
        f"attempt_dir={attempt} job_id=7 hosts=(n1) job_check=(--python={sys.executable} --gpus=1 {level})\n"
        f"job_workdir={tmp_path}/none step=() job_check_only=yes\n"
        f'enter() {{ :; }}; srun() {{ cd {evil} && bash -c "${{@: -1}}"; }}'
    )
    bash(f"{given}\n{part('node_check')}")
    assert not (tmp_path / "PWNED").exists()
    found = json.loads((attempt / "node-check.json").read_text())
    texts = {one["check"]: one["text"] for one in found["common"]}
    assert texts["working folder"] == f"the working folder {tmp_path}/none: No such file or directory"


def test_a_node_without_the_working_folder_does_not_train_elsewhere(tmp_path: Path) -> None:
    given = "node_functions=(on_each_node); on_each_node() { echo trained in $PWD; }"
    done = bash(f"{given}\nattempt_dir={tmp_path} job_workdir={tmp_path}/a\\ folder\n{part('node')}\n")
    script = ["bash", str(tmp_path / "node.sh")]
    done = subprocess.run(script, cwd="/tmp", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"has no working folder {tmp_path}/a folder" in done.stderr
    (tmp_path / "a folder").mkdir()
    done = subprocess.run(script, cwd="/tmp", capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"trained in {tmp_path}/a folder\n", done.stderr


# --- Files ---


def test_a_pipe_as_the_stop_file_does_not_block_the_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stop")
    given = f"attempt_dir={tmp_path} job_id=7 restart=0 nodes=n1\ncall_after() {{ :; }}"
    done = bash(f"set -o pipefail\n{given}\n{part('records')}\nphase=ended\nexit 0")
    assert done.returncode == 0
    assert '"warned": null' in (tmp_path / "end.json").read_text()


def test_a_checkpoint_from_before_1970_is_skipped(tmp_path: Path) -> None:
    for name, when in (("old", -(10**7)), ("new", 1000)):
        (tmp_path / f"{name}.pt").write_text("x")
        os.utime(tmp_path / f"{name}.pt", (when, when))
    given = f"job_checkpoints() {{ checkpoints={tmp_path}; }}\njob_checkpoint=('.*[.]pt') job_runtime={archive()}"
    done = bash(f"{given}\n{part('resume')}\necho found $checkpoint")
    assert done.stdout.endswith(f"found {tmp_path}/new.pt\n"), done.stderr
    assert done.stderr == ""
