"""Hostfile, scripts for a start by hand, and the sbatch script without a job file."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import prove
from tests.strategies.conftest import Config

TRAINING = """\
import os, sys
names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"
with open(f"seen-{os.environ['RANK']}", "w") as note:
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    note.write(repr([*(os.environ[name] for name in names.split()), *words]))
"""


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ([], "inside a Slurm job"),
        (["--hosts", "n[1-"], "Slurm's syntax"),
        (["--hosts", "n1,n2,n1"], "each node once"),
        (["--hosts", "n[1-2]:8,n1:4"], "`n1` is listed twice"),
        (["--hosts", "n1:0"], "'n1:0' in the host list does not end with 1 to 1024 slots"),
        (["--hosts", "n1:8:8"], "'n1:8:8' in the host list does not end with"),
        (["--hosts", "n1:"], "'n1:' in the host list does not end with"),
    ],
)
def test_a_host_list_that_is_none(config: Config, options: list[str], hint: str) -> None:
    done = config("hostfile", *options)
    assert (done.code, done.codes) == (3, {"HL660"})
    assert hint in done.err


def test_inside_a_job_its_nodes_and_gpus_are_meant(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[08-10]")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    assert config("hostfile").out == "n08 slots=4\nn09 slots=4\nn10 slots=4\n"
    assert config("hostfile", "--slots", "2", "--hosts", "a").out == "a slots=2\n"


@pytest.mark.prove  # tests/guides/test_pdsh_hosts.py has one read by it
@pytest.mark.torch("deepspeed")
def test_deepspeed_reads_the_hostfile(config: Config, tmp_path: Path) -> None:
    assert config("hostfile", "--hosts", "n[1-2],n3:4", "--slots", "8", "-o", "hosts").code == 0
    code = "from deepspeed.launcher.runner import fetch_hostfile; print(dict(fetch_hostfile('hosts')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "{'n1': 8, 'n2': 8, 'n3': 4}"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--nodes 4 --master-addr n1 --node-rank 4", "HL661"),
        ("--nodes 2", "HL662"),
        ("--nodes 2 --master-addr localhost", "HL662"),
        ("--nodes 2 --master-addr n1;reboot", "HL662"),
    ],
)
def test_a_start_that_could_not_work(config: Config, options: str, code: str) -> None:
    done = config("launcher", "--script", "train.py", *options.split(), "-o", "start.sh")
    assert (done.code, done.out, done.codes) == (3, "", {code})
    assert not Path("start.sh").exists()


@pytest.mark.slow
@pytest.mark.torch("deepspeed")
@pytest.mark.parametrize("library", ["torch", prove("deepspeed")])
def test_the_scripts_of_two_nodes_start_one_training(config: Config, tmp_path: Path, library: str) -> None:
    """Both nodes are this machine, by its name; two processes on each."""
    (tmp_path / "-my train.py").write_text(TRAINING)
    host = socket.gethostname()
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1] % 20_000 + 10_000)
    steps = []
    for node in ("1", "0"):
        options = ["--nodes", "2", "--gpus-per-node", "2", "--master-addr", host, "--master-port", port]
        options += ["--node-rank", node, "--python", sys.executable, "--script=-my train.py"]
        options += ["--use-deepspeed"] if library == "deepspeed" else []
        assert config("launcher", *options, "-o", f"start-{node}.sh", "--", "--note", "it's $HOME").code == 0
        steps.append(subprocess.Popen([str(tmp_path / f"start-{node}.sh")], cwd=tmp_path))
    assert [step.wait(timeout=120) for step in steps] == [0, 0]
    for rank in range(4):
        expected = [str(rank), str(rank % 2), "4", host, port, "--note", "it's $HOME"]
        assert (tmp_path / f"seen-{rank}").read_text() == repr(expected)


def test_the_sbatch_script_asks_for_what_was_said(config: Config) -> None:
    done = config(
        *("slurm", "--nodes", "4", "--gpus_per_node", "8", "--use_deepspeed", "--time_limit", "48:00:00"),
        *("--script", "src/train.py", "--partition", "gpu", "--account", "proj", "--memory", "256G"),
        *("--modules", "cuda/12.2", "--conda", "llm", "-o", "job.sh", "--", "--note", "${paths.x}"),
    )
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("--time-limit: HL515 warning: "), done.err  # no option names checkpoints
    script = Path("job.sh").read_text()
    asked = {line.split()[1] for line in script.splitlines() if line.startswith("#SBATCH")}
    assert asked >= {
        *("--job-name=train", "--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=64", "--gpus-per-node=8"),
        *("--time=2-00:00:00", "--partition=gpu", "--account=proj", "--mem=256G"),
    }
    assert "module load cuda/12.2" in script
    assert "conda activate llm" in script
    assert "deepspeed.launcher.runner" in script
    assert "'${paths.x}'" in script
    assert str(Path("src/train.py").absolute()) in script
    shellcheck = str(Path(sys.executable).with_name("shellcheck"))
    checked = subprocess.run([shellcheck, "job.sh"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--time-limit", "soon"], "--time-limit: HL011"),
        (["--memory", "much"], "--memory: HL011"),
        (["--name", "a b"], "--name: HL013"),
        (["--partition", "a`b"], "--partition: HL412"),
    ],
)
def test_an_option_that_slurm_would_not_take(config: Config, options: list[str], word: str) -> None:
    done = config("slurm", "--script", "train.py", *options)
    assert (done.code, done.out) == (3, "")
    assert word in done.err
