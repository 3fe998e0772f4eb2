"""`render` for another site refuses nothing that only that site can know; `submit` there still checks it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import FindingCode
from hpc_launch.prepare.prepare import PreparedJob, prepare_job
from hpc_launch.sites import this_machine

SITE = """
name: far
scheduler: slurm
node_classes: {gpu: {cpus: 8, gpus: 4}}
queues: {gpu: {node_class: gpu}}
paths: {scratch: "${env.FAR_SCRATCH}"}
internet: direct
containers: {images: {pytorch: /far/pytorch.sif}}
"""
JOB = "name: tiny\ntime: 10m\nscript: train.py\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(this_machine, "logins", lambda _: None)
    (tmp_path / "train.py").touch()
    (tmp_path / "far.yaml").write_text(SITE)
    return tmp_path


def rendered(folder: Path, job: str, *, anywhere: bool = True) -> PreparedJob:
    (folder / "job.yaml").write_text(JOB + job)
    return prepare_job(folder / "job.yaml", site=str(folder / "far.yaml"), anywhere=anywhere)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("container: pytorch\n", "the image /far/pytorch.sif"),
        ("container: {image: pytorch, binds: [/far/data]}\n", "the bind source /far/data"),
        ("environment: {venv: /far/venv}\n", "the virtual environment /far/venv"),
        ("environment: {source: [/far/x.sh]}\n", "the file /far/x.sh"),
        ("workdir: /far\n", "the working directory /far"),
        ("args: {data: '${paths.scratch}/x'}\n", "FAR_SCRATCH of site far, so the script contains a placeholder"),
        ("trackers: [{name: wandb, mode: online}]\n", "wandb's key for api.wandb.ai at site far"),
    ],
)
def test_what_only_the_site_knows_is_not_checked(folder: Path, job: str, words: str) -> None:
    found = rendered(folder, job).warnings
    assert {finding.code for finding in found} == {FindingCode.NOT_CHECKED_HERE}
    assert f"not checked here: {words}" in [finding.message for finding in found]
    with pytest.raises(Refused):
        rendered(folder, job, anywhere=False)


def test_a_variable_of_the_site_that_is_not_set_gets_a_placeholder(folder: Path) -> None:
    assert "/FAR_SCRATCH-is-not-set-here/x" in rendered(folder, "args: {data: '${paths.scratch}/x'}\n").script


@pytest.mark.parametrize("job", ["environment: {source: [missing.sh]}\n", "nodes: 0\n", "args: {x: '${env.MINE}'}\n"])
def test_what_this_machine_knows_is_refused(folder: Path, job: str) -> None:
    with pytest.raises(Refused):
        rendered(folder, job)


def test_on_the_site_itself_everything_is_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_SYSTEM", "far")
    (folder / "far.yaml").write_text(f"{SITE}detect: [{{env: {{FAR_SYSTEM: far}}}}]\n")
    with pytest.raises(Refused, match="does not exist"):
        rendered(folder, "container: pytorch\n")


@pytest.mark.parametrize(
    ("rules", "answer", "checked"),
    [
        ("detect: [{cluster: far}]", "echo ClusterName = far", True),
        ("detect: [{cluster: far}]", "echo ClusterName = near", False),
        ("detect: [{cluster: far}]", "exit 1", False),
        ("detect: [{host: no.such.host}, {cluster: far}]", "echo ClusterName = far", True),
    ],
)
def test_a_login_node_is_known_by_its_slurm(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rules: str, answer: str, checked: bool
) -> None:
    scontrol = folder / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\n{answer}\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
    (folder / "far.yaml").write_text(f"{SITE}{rules}\n")
    if checked:
        with pytest.raises(Refused, match="does not exist"):
            rendered(folder, "container: pytorch\n")
    else:
        assert {one.code for one in rendered(folder, "container: pytorch\n").warnings} == {FindingCode.NOT_CHECKED_HERE}
