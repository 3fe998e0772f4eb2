"""`sitecustomize.py` on the PYTHONPATH of a job: what each process tells, and that nothing else changes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

from hpc_launch.base.installed import PHASES
from tests.marks import prove

RANK = ["python", "torch", "init", "store", "group", "collective", "done"]
LAUNCHER = ["launcher", "rendezvous", "joined", "met"]


class Job:
    """The hooks folder of a job, and a pipe without a watcher."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pipe = folder, folder / "pipe"
        (folder / "hooks").mkdir()
        shutil.copy(PHASES, folder / "hooks")
        os.mkfifo(self.pipe)
        self.end = os.open(self.pipe, os.O_RDWR)

    def run(self, *words: str, path: str = "", **variables: str) -> str:
        """The output of a Python program in the job; `CODE` is how it should end."""
        hooks = str(self.folder / "hooks")
        env = {**os.environ, "HPC_LAUNCH_PHASE_PIPE": str(self.pipe), "PYTHONFAULTHANDLER": "1", **variables}
        env["PYTHONPATH"] = f"{hooks}:{path}" if path else hooks
        command = [sys.executable, *words]
        done = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, timeout=240, check=False)
        assert done.returncode == int(variables.get("CODE", "0")), done.stderr.decode()
        assert b"sitecustomize" not in done.stderr
        return done.stdout.decode().strip()

    def told(self) -> dict[str, list[str]]:
        """The marks that arrived, by process."""
        os.set_blocking(self.end, False)
        marks: dict[str, list[str]] = defaultdict(list)
        try:
            text = os.read(self.end, 1 << 16).decode()
        except BlockingIOError:
            text = ""
        for line in text.splitlines():
            mark, process, *_ = line.split()
            marks[process].append(mark)
        return dict(marks)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize(
    ("program", "code", "marks"),
    [
        ("raise ValueError('x')", 1, ["python", "raised"]),
        ("raise KeyboardInterrupt", -2, ["python", "raised"]),
        ("import sys; sys.exit(3)", 3, ["python"]),
        ("try: 1 / 0\nexcept ZeroDivisionError: pass", 0, ["python"]),
    ],
)
def test_an_exception_that_nobody_catches_is_told(job: Job, program: str, code: int, marks: list[str]) -> None:
    job.run("-c", program, CODE=str(code), RANK="1", LOCAL_RANK="1")
    assert job.told() == {"1": marks}


def test_a_rank_and_a_launcher_tell_that_python_started_and_children_of_a_rank_do_not(job: Job) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    job.run("-c", child, RANK="3")
    job.run("-c", "")
    assert job.told() == {"3": ["python"], "-": ["launcher"]}


def test_nothing_is_told_outside_a_watched_job_or_where_python_ignores_its_variables(job: Job) -> None:
    job.run("-c", "", HPC_LAUNCH_PHASE_PIPE="")
    for option in ("-I", "-E", "-S"):
        job.run(option, "-c", "")
    assert job.told() == {}


def test_the_sitecustomize_of_the_site_runs_and_is_the_module(job: Job) -> None:
    site = job.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.path.append('/from/site')\nvalue = 7\n")
    code = "import sys, sitecustomize as s; print(s.value, s.__file__, sys.path[-1])"
    assert job.run("-c", code, path=str(site)) == f"7 {site}/sitecustomize.py /from/site"
    assert job.told() == {"-": ["launcher"]}


def test_a_process_never_waits_for_its_watcher(job: Job) -> None:
    os.set_blocking(job.end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(job.end, b"x" * 4096)
    job.run("-c", "print(1)", RANK="0")
    job.run("-c", "print(1)", RANK="0", HPC_LAUNCH_PHASE_PIPE=str(job.folder / "none"))


def test_what_the_watcher_could_not_take_is_sent_later(job: Job) -> None:
    late = job.folder / "late"
    begin = f"import os; os.mkfifo({str(late)!r}); end = os.open({str(late)!r}, os.O_RDWR)"
    code = f"{begin}; import colorsys; print(os.read(end, 99))"
    assert job.run("-c", code, RANK="0", HPC_LAUNCH_PHASE_PIPE=str(late)) == r"b'python 0\n'"


def test_it_starts_nothing_and_imports_nothing(job: Job) -> None:
    code = "import sys; print(' '.join(sorted(sys.modules)))"
    plain = set(job.run("-c", code, HPC_LAUNCH_PHASE_PIPE="").split())
    assert set(job.run("-c", code, RANK="0").split()) == plain


TRAINING = """
import sys
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
dist.init_process_group("gloo")
value = torch.ones(1)
if "compile" in sys.argv:  # the compiler sees the function itself, whole, and not what reports
    def step(value):
        dist.all_reduce(value)
        return value + 1
    print(torch.compile(step, backend="eager", fullgraph=True)(value))
dist.barrier()
dist.all_reduce(value)
assert dist.init_process_group is c10d.init_process_group and dist.all_reduce is c10d.all_reduce
for function in (getattr(dist, name, None) for name in COLLECTIVES):
    assert "sitecustomize" not in str(getattr(function, "__code__", ""))
assert "sitecustomize" not in str(type(torch.__loader__)) and "sitecustomize" not in str(type(c10d.__spec__.loader))
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "--standalone train.py",
        prove("--standalone train.py compile"),
        prove("--master-addr=127.0.0.1 --master-port=29377 train.py"),
    ],
)
def test_torchrun_and_its_ranks_tell_every_phase_in_order(job: Job, words: str) -> None:
    names = re.search(r'COLLECTIVES = """(.*?)"""', (job.folder / "hooks" / "sitecustomize.py").read_text(), re.DOTALL)
    assert names is not None
    (job.folder / "train.py").write_text(f"COLLECTIVES = {names[1].split()}\n{TRAINING}")
    job.run("-m", "torch.distributed.run", "--nproc-per-node=2", *words.split())
    told = job.told()
    assert set(told) == {"-", "0", "1"}
    assert list(dict.fromkeys(told["-"])) == LAUNCHER if "--standalone" in words else told["-"][:1] == ["launcher"]
    assert told["-"][-1] == "met"
    for rank in ("0", "1"):
        assert told[rank] == RANK


SAVING = """
import io, threading, time, torch, torch.distributed.checkpoint as dcp
class Slow(io.BytesIO):
    def write(self, data):
        time.sleep(0.03)
        return super().write(data)
state = {"weight": torch.ones(9)}
torch.save(state, Slow())
torch.save(state, io.BytesIO())
thread = threading.Thread(target=torch.save, args=(state, Slow()))
thread.start()
thread.join()
try:
    torch.save(lambda: 0, Slow())
except Exception as error:
    print(type(error).__name__)
dcp.save(state, checkpoint_id="saved", no_dist=True)
print(torch.load("saved/../plain.pt")["weight"].sum() if torch.save(state, "plain.pt") is None else "")
assert torch.save is torch.serialization.save and torch.save.__name__ == "save"
"""


@pytest.mark.prove
@pytest.mark.torch
def test_rank_0_tells_how_long_it_saved_and_others_do_not(job: Job) -> None:
    (job.folder / "train.py").write_text(SAVING)
    printed = job.run("train.py", RANK="0").split()
    assert printed[-1] == "tensor(9.)"
    os.set_blocking(job.end, False)
    lines = [line.split() for line in os.read(job.end, 1 << 16).decode().splitlines()]
    saved = [int(words[2]) for words in lines if words[:2] == ["saved", "0"]]
    assert saved[0] >= 30
    assert 2 <= len(saved) <= 4, "neither what was fast, nor what another thread saved, nor a part of another one"
    job.run("train.py", RANK="1")
    assert {mark for marks in job.told().values() for mark in marks} == {"python", "torch"}


FLUENT = """
import os
class Run:
    def __init__(self, run_id):
        self.info = self
        self.run_id = run_id
runs = ["known"]
def start_run(run_id=None, **options):
    run_id = run_id or os.environ.pop("MLFLOW_RUN_ID", None)
    if run_id and run_id not in runs:
        raise RuntimeError("Run %r not found" % run_id)
    return Run(run_id or "new")
"""
"""As mlflow.tracking.fluent 3.17 does: the id of a run that does not exist is an error."""

TRACKED = """
import mlflow
from mlflow.tracking import fluent
print(mlflow.start_run().info.run_id, mlflow.start_run is fluent.start_run, mlflow.start_run().info.run_id)
"""


@pytest.mark.parametrize(
    ("rank", "kept", "own", "first"),
    [
        ("0", None, None, "new"),
        ("0", "known", None, "known"),
        ("0", "deleted", None, "new"),
        ("0", "$(rm -rf /)", None, "new"),
        ("0", "deleted", "known", "known"),
        ("1", "known", None, "new"),
    ],
)
def test_rank_0_continues_the_run_of_mlflow(job: Job, rank: str, kept: str | None, own: str | None, first: str) -> None:
    package = job.folder / "mlflow" / "tracking"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "fluent.py").write_text(FLUENT)
    (package.parent / "__init__.py").write_text("from mlflow.tracking.fluent import start_run\n")
    file = job.folder / "mlflow-run-id"
    if kept is not None:
        file.write_text(kept)
    own_id = {"MLFLOW_RUN_ID": own} if own else {}
    for pipe in (str(job.pipe), ""):
        if kept is not None:
            file.write_text(kept)
        variables = {"HPC_LAUNCH_MLFLOW_RUN": str(file), "HPC_LAUNCH_PHASE_PIPE": pipe, **own_id}
        printed = job.run(
            "-c", TRACKED, path=str(job.folder), RANK=rank, HPC_LAUNCH_RUN_DIR=str(job.folder), **variables
        )
        assert printed == f"{first} True new"
    if rank == "0" and own is None:
        assert file.read_text().strip() == first


@pytest.mark.parametrize(
    ("rank", "own", "expected"),
    [
        ("0", "{run}", "{run} allow"),
        ("1", "{run}", "None None"),
        ("1", "mine", "mine allow"),
        ("", "{run}", "{run} allow"),
    ],
)
def test_only_rank_0_continues_the_run_of_wandb(job: Job, rank: str, own: str, expected: str) -> None:
    code = "import os; print(os.environ.get('WANDB_RUN_ID'), os.environ.get('WANDB_RESUME'))"
    run = job.folder.name
    variables = {"WANDB_RUN_ID": own.format(run=run), "WANDB_RESUME": "allow", "HPC_LAUNCH_RUN_DIR": str(job.folder)}
    assert job.run("-c", code, RANK=rank, **variables) == expected.format(run=run)


def test_a_process_that_starts_before_the_first_one_of_its_node_waits_for_the_pipe(tmp_path: Path) -> None:
    part = Path(__file__).parents[2] / "slurm_templates" / "parts" / "watch.sh"
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "agent.pyz").touch()
    made = f"attempt_dir={tmp_path} job_node_rank=NODE job_phases=1 job_watch=(); . {part}"
    subprocess.run(["bash", "-c", made], check=True)
    folders = {"HPC_LAUNCH_RUN_DIR": str(tmp_path), "HPC_LAUNCH_ATTEMPT_DIR": str(tmp_path), "NODE": "0"}
    env = {**os.environ, **folders}
    words = ["bash", str(tmp_path / "watch.sh"), "bash", "-c", '[ -p "$HPC_LAUNCH_PHASE_PIPE" ]']
    with subprocess.Popen(words, env={**env, "LOCAL_RANK": "1"}) as second:
        time.sleep(0.3)
        assert subprocess.run(words, env={**env, "LOCAL_RANK": "0"}, check=False).returncode == 0
        assert second.wait() == 0
