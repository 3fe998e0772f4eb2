"""Every option in a golden script is one that the program it is given to knows, by that program's own word."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

EXPECTED = sorted((Path(__file__).parent / "expected").glob("*.sh"))
PLUGINS = {
    "container-image",
    "container-mounts",
    "container-workdir",
    "container-mount-home",
    "no-container-mount-home",
    "container-writable",
    "no-container-remap-root",
    "container-env",
    "environment",
}
"""Options that plug-ins add to srun: Pyxis 0.24 (its README), and the Container Engine of CSCS (its documentation)."""

_LONG = re.compile(r"--([a-z][a-z0-9-]*)")


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As much of a configuration as Slurm's commands want before they show their help."""
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=all Nodes=ALL\n")
    return path


def known_to(program: str, conf: Path) -> set[str]:
    """The long options that a Slurm command's help and usage list."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    environment = {"PATH": os.environ["PATH"], "SLURM_CONF": str(conf)}
    told = [
        subprocess.run([program, how], capture_output=True, text=True, check=True, env=environment)
        for how in ("--help", "--usage")
    ]
    # In sbatch(1) and srun(1), and left out of their help.
    return {name for one in told for name in _LONG.findall(one.stdout)} | {"open-mode", "wait-all-nodes"}


def command(script: Path, program: str) -> list[str]:
    """The words of a command of several lines, as bash splits them; expansions stay as they are written."""
    text = script.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if program in line and not line.lstrip().startswith("#")]
    line = next((line for line in lines if "node.sh" in line), lines[0])  # srun may prepare the nodes before
    words = shlex.split(line.replace("$'", "'"), comments=False)
    return [word.removesuffix(")") for word in words]  # of a subshell


def known(word: str) -> str:
    """A word with numbers where the job will have put them."""
    return word.replace("=$node", "=0").replace("$MASTER_PORT", "10000")


@pytest.mark.parametrize("script", EXPECTED, ids=lambda path: path.stem)
def test_sbatch_knows_every_directive(script: Path, slurm_conf: Path) -> None:
    directives = re.findall(r"^#SBATCH --([a-z0-9-]+)", script.read_text(), re.MULTILINE)
    assert set(directives) <= known_to("sbatch", slurm_conf)


BY_SRUN = [path for path in EXPECTED if re.search(r"^ *exec srun [^#]*?node\.sh", path.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("script", BY_SRUN, ids=lambda path: path.stem)
def test_srun_knows_every_option(script: Path, slurm_conf: Path) -> None:
    words = command(script, "exec srun ")
    options = {name for word in words[: words.index("bash")] for name in _LONG.findall(word)}
    assert {"cpus-per-task", "wait", "output"} <= options
    assert ("no-kill" in options) != ("kill-on-bad-exit" in options)
    assert options <= known_to("srun", slurm_conf) | PLUGINS


@pytest.mark.torch
@pytest.mark.parametrize(
    "script",
    [path for path in EXPECTED if "torch.distributed.run" in path.read_text()],
    ids=lambda path: path.stem,
)
def test_torchrun_takes_the_whole_command(script: Path) -> None:
    run = importlib.import_module("torch.distributed.run")
    words = command(script, "-m torch.distributed.run")
    arguments = words[words.index("torch.distributed.run") + 1 :]
    parsed = run.get_args_parser().parse_args([known(word) for word in arguments])
    assert parsed.rdzv_backend == ("static" if "--node-rank=$node" in arguments else "c10d")
    assert parsed.training_script in arguments
    after = arguments[arguments.index(parsed.training_script) + 1 :]
    assert parsed.training_script_args == after


FT_LAUNCHER = (
    "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts local-addr log-dir redirects tee "
    "module no-python ft-cfg-path ft-rank-heartbeat-timeout ft-initial-rank-heartbeat-timeout ft-restart-policy"
)
"""Options of nvidia-resiliency-ext 0.4.1, `get_args_parser` in nvidia_resiliency_ext/fault_tolerance/launcher.py."""


def ft_launcher_arguments() -> list[str]:
    words = command(Path(__file__).parent / "expected" / "ft_launcher.sh", "fault_tolerance.launcher")
    return words[words.index("nvidia_resiliency_ext.fault_tolerance.launcher") + 1 :]


def test_ft_launcher_takes_the_whole_command() -> None:
    arguments = ft_launcher_arguments()
    options = {match[1] for word in arguments if (match := re.match(r"--([a-z-]+)", word))}
    assert {"rdzv-backend", "max-restarts"} < options <= set(FT_LAUNCHER.split())
    assert "--rdzv-backend=c10d" in arguments  # the only one that it supports
    assert arguments[-1].endswith("/train.py")


@pytest.mark.torch("nvidia_resiliency_ext")
def test_the_installed_ft_launcher_takes_the_whole_command() -> None:
    launcher = importlib.import_module("nvidia_resiliency_ext.fault_tolerance.launcher")
    parsed = launcher.get_args_parser().parse_args([known(word) for word in ft_launcher_arguments()])
    assert parsed.training_script.endswith("/train.py")


@pytest.mark.torch("deepspeed")
@pytest.mark.parametrize("script", [path for path in EXPECTED if "deepspeed" in path.stem], ids=lambda path: path.stem)
def test_deepspeed_takes_the_whole_command(script: Path) -> None:
    runner = importlib.import_module("deepspeed.launcher.runner")
    words = command(script, "-m deepspeed.launcher.runner")
    parsed = runner.parse_args([known(word) for word in words[words.index("deepspeed.launcher.runner") + 1 :]])
    if "--launcher=pdsh" in words:
        assert parsed.venv_script == "$enter %n"
        assert parsed.no_ssh_check
        assert parsed.user_script == "$rank"
        assert parsed.user_args == []
        return
    assert parsed.no_ssh
    assert parsed.node_rank == 0
    assert parsed.no_python
    assert parsed.user_script.endswith("/rank.sh")


@pytest.mark.parametrize(
    ("script", "program"), [("mpirun_torchrun", "mpirun.openmpi"), ("mpirun_process", "mpirun.mpich")]
)
def test_mpirun_knows_every_option(script: str, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    words = command(Path(__file__).parent / "expected" / f"{script}.sh", "mpirun -np")
    ours = {word.lstrip("-") for word in words[1 : words.index("bash")] if word.startswith("-")}
    as_root = {"PATH": os.environ["PATH"], "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    told = [
        subprocess.run([program, *how], capture_output=True, text=True, check=False, input="", env=as_root).stdout
        for how in (["--help"], ["--help", "mapping"], ["--help", "binding"])
    ]
    options = {name for text in told for name in re.findall(r"(?<![\w-])--?([a-z][a-z-]*)", text)}
    assert "np" in ours
    assert ours <= options | {"np", "mca"}  # mpirun(1) of both, and of Open MPI
