"""Modules before the runtime, steps inside the image: where they stand in the script, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpc_launch.prepare.prepare import PreparedJob, prepare_job, validate_job
from tests.images.samples import sif

SITE = """
name: here
scheduler: slurm
node_classes: {n: {cpus: 8}}
queues: {q: {node_class: n, partition: q}}
containers: {modules: [apptainer/1.4]}
prelude: [{set: {OF_SITE: 1}, where: container}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "site.yaml").write_text(SITE)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "image.sif").write_bytes(sif())
    return tmp_path


def ready(folder: Path, more: str) -> PreparedJob:
    (folder / "job.yaml").write_text(f"name: x\nscript: train.py\n{more}")
    return prepare_job(folder / "job.yaml", site=str(folder / "site.yaml"))


def test_the_order_is_the_one_that_the_page_tells(folder: Path) -> None:
    job = (
        "environment: {modules: [CUDA/13]}\nenv: {MINE: job}\ncontainer:\n  image: image.sif\n  modules: [squashfuse]\n"
        "  prelude:\n    - source: /opt/setup.sh\n    - venv: /opt/venv\n    - set: {A: '$(id)', MINE_TOO: 2}\n"
        "    - unset: [B]\n    - prepend: {PATH: /opt/bin}\n"
    )
    script = ready(folder, job).script
    order = [
        "module load CUDA/13", "module load apptainer/1.4", "module load squashfuse", "export MINE=job",
        "within() {", "export OF_SITE=1", ". /opt/setup.sh ||", ". /opt/venv/bin/activate ||", "export A=",
        "export MINE_TOO=2", "unset B", "export PATH=/opt/bin", "    export MINE=job", 'exec "$@"', "apptainer exec",
    ]  # fmt: skip
    at = 0
    for text in order:
        at = script.index(text, at)


def test_without_a_container_no_module_of_it_is_loaded(folder: Path) -> None:
    assert "apptainer" not in ready(folder, "").script


def test_a_value_of_a_step_arrives_as_it_was_written(folder: Path) -> None:
    hostile = "a $(id) `id` \\ \" ; '"
    quoted = hostile.replace("'", "''")
    script = ready(folder, f"container: {{image: image.sif, prelude: [{{set: {{A: '{quoted}'}}}}]}}\n").script
    within = script[script.index("within() {") : script.index("\n}\n", script.index("within() {")) + 3]
    code = f"{within}\nwithin printenv A\n"
    assert subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout == f"{hostile}\n"


@pytest.mark.parametrize(
    ("container", "code"),
    [
        ("{image: image.sif, prelude: [{source: a, venv: b}]}", "HL473"),
        ("{image: image.sif, prelude: [{}]}", "HL473"),
        ("{image: image.sif, prelude: [{set: {RANK: 0}}]}", "HL204"),
        ("{image: image.sif, prelude: [{unset: [SLURM_JOB_ID]}]}", "HL204"),
        ("{image: image.sif, modules: [--force]}", "HL209"),
        ("docker://a/b", "HL431"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, container: str, code: str) -> None:
    (folder / "job.yaml").write_text(f"name: x\nscript: train.py\ncontainer: {container}\n")
    found = validate_job(folder / "job.yaml", site=str(folder / "site.yaml"))
    assert [(one.code, one.place.line if one.place else None) for one in found] == [(code, 3)]


def test_a_site_may_let_its_nodes_pull(folder: Path) -> None:
    (folder / "site.yaml").write_text(SITE.replace("containers: {", "containers: {pull_on_nodes: true, "))
    assert "        docker://a/b \\\n" in ready(folder, "nodes: 2\ncontainer: docker://a/b\n").script


def test_a_venv_of_the_host_is_warned_of(folder: Path) -> None:
    (folder / "v" / "bin").mkdir(parents=True)
    (folder / "v" / "bin" / "activate").touch()
    made = ready(folder, "environment: {venv: v}\ncontainer: image.sif\n")
    assert [(one.code, one.severity) for one in made.warnings] == [("HL474", "warning")]
