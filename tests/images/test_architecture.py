"""For which processor an image is, without starting it; and that a job is refused with another one."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

from hpc_launch.images.image_record import architecture
from hpc_launch.prepare.prepare import validate_job
from tests.forked import hpc_launch_text, inherited
from tests.images.samples import sif

SITE = """
name: here
scheduler: slurm
detect: [{path: /}]
node_classes: {gh200: {cpus: 72, gpus: 1, arch: aarch64}}
queues: {gpu: {node_class: gh200, partition: gpu}}
containers: {images: {old: {path: /nowhere/old.sif, arch: x86_64}}}
"""


@pytest.mark.parametrize(("digits", "name"), [(b"02", "x86_64"), (b"04", "aarch64"), (b"06", "ppc64le"), (b"00", None)])
def test_a_sif_says_it_in_its_header(tmp_path: Path, digits: bytes, name: str | None) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(sif(digits))
    assert architecture(image) == name


def test_what_is_no_image_says_nothing(tmp_path: Path) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(b"<html>")
    assert architecture(image) is None


def findings(tmp_path: Path, container: str, site: str = SITE) -> list[str]:
    (tmp_path / "site.yaml").write_text(site)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(f"name: x\nscript: train.py\ncontainer: {container}\n")
    return [str(one) for one in validate_job(tmp_path / "job.yaml", site=str(tmp_path / "site.yaml"))]


def test_a_job_with_an_image_for_another_processor_is_refused_where_it_names_it(tmp_path: Path) -> None:
    (tmp_path / "image.sif").write_bytes(sif(b"02"))
    (found,) = findings(tmp_path, "image.sif")
    assert found.startswith(
        f"{tmp_path}/job.yaml:3:12: HL470 the image is for x86_64, but the nodes of queue `gpu` are"
    )


def check(tmp_path: Path, *words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """`containers check` in a folder; with `path` as the PATH, so that no runtime of this machine is found."""
    env = {"PATH": os.environ["PATH"] if path is None else path, "HOME": str(tmp_path), **inherited()}
    return hpc_launch_text(["containers", "check", *words], cwd=tmp_path, env=env)


def test_check_says_the_same_as_a_failure(tmp_path: Path) -> None:
    (tmp_path / "image.sif").write_bytes(sif(b"02"))
    findings(tmp_path, "image.sif")
    done = check(tmp_path, "job.yaml", "--site", "./site.yaml", "--json")
    assert done.returncode == 3, done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["name"], found["level"]) == ("job", "fail")
    assert "HL470 the image is for x86_64" in found["message"]


def test_a_machine_without_the_runtime_says_what_it_cannot_look_at(tmp_path: Path) -> None:
    (tmp_path / "image.sif").write_bytes(sif({"aarch64": b"04"}.get(platform.machine(), b"02")))
    done = check(tmp_path, "image.sif", path=str(tmp_path))
    assert done.returncode == 0, done.stderr
    levels = [line.split()[:2] for line in done.stdout.splitlines() if "hint:" not in line]
    assert levels == [["ok", "image"], ["ok", "architecture"], ["skip", "inside"]]


def test_a_bind_that_only_a_job_knows_is_left_out_without_one(tmp_path: Path) -> None:
    (tmp_path / "image.sif").write_bytes(sif(b"04"))
    (tmp_path / "site.yaml").write_text(SITE.replace("containers: {", "containers: {binds: [/usr, '/run/${job.id}'], "))
    done = check(tmp_path, "image.sif", "--site", "./site.yaml", path="")
    assert (done.returncode, "all 1 binds exist" in done.stdout) == (0, True), done.stdout + done.stderr


def test_an_image_that_was_cut_short_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "image.sif").write_bytes(sif()[:-1])
    done = check(tmp_path, "image.sif")
    assert done.returncode == 3
    assert "is shorter than its header says" in done.stdout


def test_the_right_one_is_taken(tmp_path: Path) -> None:
    (tmp_path / "image.sif").write_bytes(sif(b"04"))
    assert findings(tmp_path, "image.sif") == []


def test_what_the_site_declares_counts_without_the_file(tmp_path: Path) -> None:
    found = findings(tmp_path, "old")
    assert [one.split()[1] for one in found] == ["HL470", "HL201"]


def test_a_site_that_does_not_say_what_its_nodes_are_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "image.sif").write_bytes(sif(b"04"))
    assert findings(tmp_path, "image.sif", SITE.replace(", arch: aarch64", "")) == []
