"""Mistakes that people make in a job file: each is told before submission with its place, its cause and the remedy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Severity
from hpc_launch.job.job import JobSpec
from hpc_launch.job.key_hints import answer_to, answers
from hpc_launch.job.type_hints import fields_of
from hpc_launch.prepare.prepare import prepare_job, validate_job
from tests.forked import hpc_launch_text

SITE = """\
name: here
scheduler: slurm
detect: [{path: /}]
node_classes: {gpu: {cpus: 64, memory: 512G, gpus: 8}}
queues:
  gpu: {node_class: gpu, partition: gpu, limits: [{nodes: 1-8, time: 24:00:00}]}
"""
GOOD = "name: x\nsite: here\ntime: 20:00:00\nretry: 1\nscript: train.py\n"
LINE = 6
"""Where the mistake stands, after the lines above."""


class Mistake(NamedTuple):
    """What somebody writes, and what must be said: patterns of a finding's message and of its hint."""

    text: str
    cause: str
    remedy: str
    severity: Severity = "error"
    without: str = ""
    """A key of the good job that this one has not."""
    line: int | None = LINE
    sets: tuple[str, ...] = ()


def _warned(text: str, cause: str, remedy: str, without: str = "") -> Mistake:
    return Mistake(text, cause, remedy, "warning", without)


SEEN = (
    Mistake("partition: gpu", "unknown key `partition`", "`queue`"),
    Mistake("qos: high", "unknown key `qos`", "`queue`.*`sbatch: {qos: "),
    Mistake("ntasks: 8", "unknown key `ntasks`", "`processes_per_node`"),
    Mistake("output: log.txt", "unknown key `output`", "run folder.*hpc-launch logs"),
    Mistake("gres: gpu:4", "unknown key `gres`", "`gpus_per_node`"),
    Mistake("mail-user: me@example.org", "unknown key `mail-user`", "`notify: {mail: "),
    Mistake("cpus_per_process: 4", "unknown key `cpus_per_process`", "`cpus_per_node`.*which its processes share"),
    Mistake("environment: {module: cuda}", "unknown key `module` in `environment`", "`modules`"),
    Mistake("batch_size: 32", "unknown key `batch_size`", "`args`.*`strategy: {micro_batch: "),
    _warned("memory: 64", "64 MiB", "`64G`"),
    _warned("time: 12", "12 minutes", "`12:00:00`", "time"),
    _warned("time: 12:00", "12 minutes", "`12:00:00`", "time"),
    Mistake("command: python a.py && python b.py | tee log", "no shell.*`&&`", "bash, -c", without="script"),
    _warned("args: {data: $HOME/data}", "`\\$HOME` is not expanded", "`\\$\\{env.HOME\\}`"),
    Mistake("checkpoint: {dir: c, pattern: step-*.pt}", "regular expression", r"step-\(\\d\+\)\\\.pt"),
    Mistake("script: run.sh", "not a Python file", "`command: \\[bash, run.sh\\]`", without="script"),
    Mistake("command: ./tool", "not executable", "chmod", without="script"),
    Mistake("environment: {conda: /nowhere/env}", "/nowhere/env does not exist", "conda create"),
    Mistake("args: [--hf-token, hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345]", "secret", "`secrets: "),
    Mistake('args: {hub: "${env.MY_TOKEN}"}', "MY_TOKEN", "is a secret.*`secrets: \\[MY_TOKEN\\]`"),
    _warned("secrets: [UNSET_TOKEN]", "UNSET_TOKEN is not set", "export UNSET_TOKEN"),
    Mistake("env: [A=1, B=2]", "`env` must be a mapping", "`env: {A: 1}`"),
    Mistake("args: --lr 1", "`args` must be", r"`args: {lr: 1}`"),
    Mistake("args: {id: ${SLURM_JOB_ID}}", "YAML", r"\"\$\{job.id\}\""),
    Mistake("", "unknown key `lr`", "`--set args.lr=3`", line=None, sets=("lr=3",)),
)
"""What new users wrote."""
THOUGHT_OF = (
    Mistake("gpus_per_node: all", "`gpus_per_node` must be a whole number", "omit it"),
    Mistake("nodes: 2-4", "`nodes` must", "`2..4`"),
    Mistake("script: train.py --lr 0.1", "train.py --lr 0.1 does not exist", "`args`", without="script"),
    Mistake("script: python train.py", "python train.py does not exist", "`script: train.py`", without="script"),
    Mistake("launcher: mpirun", "`launcher", "srun"),
    Mistake("launcher: accelerate", "`launcher", "torchrun.*`strategy: {for: accelerate"),
    Mistake("command: torchrun --nproc_per_node 8 train.py", "starts `torchrun`", "`script: ", without="script"),
    Mistake("command: [srun, python, train.py]", "starts `srun`", "`launcher: none`", without="script"),
    Mistake("docker: pytorch.sif", "unknown key `docker`", "`container: "),
    Mistake("secrets: {HF_TOKEN: hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345}", "`secrets` must be a list", r"\[HF_TOKEN\]"),
    Mistake("num_gpus: 8", "unknown key `num_gpus`", "`gpus_per_node`.*`gpus`"),
    Mistake("checkpoint: {every: 500}", "unknown key `every`", "`args`"),
    Mistake("sbatch: [--reservation=x]", "`sbatch` must be a mapping", "`sbatch: {reservation: x}`"),
    Mistake("sbatch: {gres: gpu:4}", "`--gres`", "`gpus_per_node`"),
    Mistake("sweep: {args.lr: [1, 2]}", "unknown key `args.lr` in `sweep`", "`grid`"),
    Mistake("args: [--lr 0.1, --epochs 3]", "one word", r"`--lr`, `?0.1", "warning"),
    Mistake('env: {PATH: "/opt/bin:$PATH"}', "`\\$PATH` is not expanded", "`\\$\\{shell.PATH\\}`", "warning"),
    Mistake("args: {data: ~/corpus}", "`~` is not expanded", "`\\$\\{home\\}/corpus`", "warning"),
    Mistake("strategy: deepspeed", "`strategy", "zero1, zero2 or zero3"),
    Mistake("module: train.py", "train.py", "`script: train.py`", without="script"),
    Mistake("command: FOO=1 python train.py", "`FOO=1`", "`env: {FOO: 1}`", without="script"),
    Mistake("nnodes: 2", "unknown key `nnodes`", "`nodes`"),
    Mistake("processes_per_node: 2", "6 of 8 GPUs", "gpus_per_node: 2", "warning"),
    Mistake("", "nodes:2` is not of the form KEY=VALUE", "`--set nodes=2`", line=None, sets=("nodes:2",)),
)
"""What else people may write."""
MISTAKES = [*SEEN, *THOUGHT_OF]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "here.yaml").write_text(SITE)
    for name in ("train.py", "run.sh", "tool"):
        (tmp_path / name).write_text("")
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path / "sites"))
    monkeypatch.setenv("HPC_LAUNCH_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("MY_TOKEN", "my-own-value")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mistake", [pytest.param(one, id=one.text or str(one.sets)) for one in MISTAKES])
def test_a_mistake_is_told_with_place_cause_and_remedy(folder: Path, mistake: Mistake) -> None:
    kept = [line for line in GOOD.splitlines() if not (mistake.without and line.startswith(f"{mistake.without}:"))]
    Path("job.yaml").write_text("\n".join([*kept, mistake.text, ""]))
    found = validate_job(Path("job.yaml"), sets=mistake.sets)
    line = mistake.line and len(kept) + 1
    told = [
        one
        for one in found
        if one.severity == mistake.severity
        and one.place is not None
        and one.place.line == line
        and re.search(mistake.cause, one.message)
        and re.search(mistake.remedy, one.hint or "")
    ]
    shown = "\n".join(f"{one} | {one.hint}" for one in found)
    assert len(told) == 1, shown
    assert mistake.severity == "error" or all(one.severity == "warning" for one in found), shown
    assert "hf_AbC" not in shown
    assert "my-own-value" not in shown


def test_the_job_without_a_mistake_is_right(folder: Path) -> None:
    Path("job.yaml").write_text(GOOD)
    assert validate_job(Path("job.yaml")) == []


def test_what_is_meant_is_accepted(folder: Path) -> None:
    Path("job.yaml").write_text(GOOD + "notify: me@example.org\n")
    assert validate_job(Path("job.yaml")) == []
    assert "#SBATCH --mail-user=me@example.org " in prepare_job(Path("job.yaml")).script


@pytest.mark.parametrize("word", sorted(answers()))
def test_the_answer_to_a_word_names_keys_that_exist(word: str) -> None:
    parent, _, last = word.rpartition(".")
    answer = answer_to((parent, last.replace("*", "any")) if parent else (word,), "x")
    assert answer is not None
    named = re.findall(r"`([a-z][a-z_.]+)(?:: |`)", answer)
    keys = {*fields_of(JobSpec), "jobs", "after", "grid", "zero1", "zero2", "zero3", "name", "events"}
    assert {name.partition(".")[0] for name in named} <= keys, answer


def test_what_render_accepts_is_checked_and_explained_on_a_laptop(folder: Path) -> None:
    profile = folder / "sites" / "here.yaml"
    profile.write_text(SITE.replace("detect: [{path: /}]", "detect: [{host: 'login*.centre'}]"))
    Path("job.yaml").write_text(GOOD + "environment: {venv: /nowhere/venv}\nsecrets: [ONLY_THERE_TOKEN]\n")
    for verb in ("render", "validate", "plan", "explain"):
        done = hpc_launch_text([verb, "job.yaml"], cwd=folder, env=dict(os.environ), timeout=90)
        assert done.returncode == 0, done.stderr
        assert "HL216 warning: not checked here: the virtual environment" in done.stdout + done.stderr
        assert "HL210" not in done.stdout + done.stderr


def test_a_dry_run_warns_of_a_secret_that_is_not_set(folder: Path) -> None:
    Path("job.yaml").write_text(GOOD + "secrets: [UNSET_TOKEN]\n")
    done = hpc_launch_text(["submit", "job.yaml", "--dry-run"], cwd=folder, env=dict(os.environ), timeout=90)
    assert done.returncode == 0
    assert "job.yaml:6:10: HL210 warning: the secret UNSET_TOKEN is not set" in done.stderr


@pytest.mark.parametrize("text", ["#!/bin/bash\n#SBATCH -N 2\nsrun python a.py\n", "#SBATCH -N 2\nsrun a\n"])
def test_a_script_is_no_job_file(folder: Path, text: str) -> None:
    Path("old.sbatch").write_text(text)
    (found,) = validate_job(Path("old.sbatch"))
    assert (
        str(found)
        == f"old.sbatch:{found.place.line if found.place else 0}:1: {found.code} the file is a script, not a job file"
    )
    assert found.hint == "`hpc-launch init --from old.sbatch` writes a job file from a script"


SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"


@pytest.mark.parametrize(
    "text",
    [
        "args: {hub_token: 'not-in-a-known-form'}",
        "args: ['--api-key=abc']",
        "args: [--password, abc]",
        f"args: {{x: {SECRET}}}",
        f"env: {{LOGIN: {SECRET}}}",
        f"sbatch: {{comment: {SECRET}}}",
        f"notify: {{command: [tell, {SECRET}]}}",
        f"launcher: {{name: torchrun, options: [--x={SECRET}]}}",
        "args: {url: 'https://me:hunter2@example.org/data'}",
        'args: {x: "${env.LOGIN_TOKEN}"}',
        'env: {PLAIN: "${env.LOGIN_TOKEN}"}',
        'workdir: "${env.LOGIN_TOKEN}"',
        'args: {x: "${env.IN_ITS_VALUE}"}',
    ],
)
def test_no_secret_reaches_a_script_or_what_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOGIN_TOKEN", "my-own-value")
    monkeypatch.setenv("IN_ITS_VALUE", SECRET)
    Path("job.yaml").write_text(f"{GOOD}{text}\n")
    found = validate_job(Path("job.yaml"))
    assert [one.severity for one in found] == ["error"]
    shown = "".join(f"{one} {one.hint}" for one in found)
    assert not {word for word in (SECRET, "my-own-value", "hunter2", "abc") if word in shown}
    with pytest.raises(Refused):
        prepare_job(Path("job.yaml"))


@pytest.mark.parametrize(
    "text",
    [
        "args: {pad_token: <pad>, sort_key: name, token_count: 8, model: sk-learn-large-v2-2024-extended}",
        "args: {image: 'docker://ubuntu:22.04@sha256:0123456789abcdef', url: 'https://example.org/a:b@c'}",
        "command: curl -o x https://example.org/?a=1&b=2",
        "command: python -c 'import a; a.b(1 > 0) && $HOME'",
        "command: [bash, -c, 'cd x && python a.py > log']",
        "command: python -m mine.train --pad <pad>",
        "command: python -m",
        "checkpoint: {dir: c, pattern: 'step-.*'}",
        "time: 120",
        "memory: 64000",
    ],
)
def test_what_only_looks_like_a_mistake(folder: Path, text: str) -> None:
    replaced = [f"{key}:" for key in ("script", "time") if text.startswith("command" if key == "script" else key)]
    kept = [line for line in GOOD.splitlines() if not line.startswith(tuple(replaced))]
    Path("job.yaml").write_text("\n".join([*kept, text, ""]))
    assert [str(one) for one in validate_job(Path("job.yaml"))] == []


def test_conda_is_asked_for_an_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conda = folder / "miniforge" / "bin" / "conda"
    conda.parent.mkdir(parents=True)
    conda.write_text("""#!/bin/sh\necho '{"envs": ["/miniforge", "/elsewhere/known"]}'\n""")
    conda.chmod(0o755)
    monkeypatch.setenv("CONDA_EXE", str(conda))
    Path("job.yaml").write_text(GOOD + "environment: {conda: train}\n")
    (found,) = validate_job(Path("job.yaml"))
    assert str(found) == f"job.yaml:{LINE}:22: HL201 the conda environment train is not known to {conda}"
    for right in ("conda: known", "conda: base", "conda: train, modules: [Anaconda]"):  # a module may bring another
        Path("job.yaml").write_text(f"{GOOD}environment: {{{right}}}\n")
        assert validate_job(Path("job.yaml")) == []
    (folder / "miniforge" / "envs" / "train").mkdir(parents=True)
    conda.write_text("#!/bin/sh\nexit 1\n")
    for unknown in ("train", "other"):
        Path("job.yaml").write_text(f"{GOOD}environment: {{conda: {unknown}}}\n")
        assert validate_job(Path("job.yaml")) == []
