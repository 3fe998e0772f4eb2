"""The node check inside a real Apptainer: its software is compared between the nodes, and a missing image is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.slurm.test_node_check import outcome
from tests.slurm.user import User

SRUN = """#!/bin/bash
# Stands in for srun with Pyxis: the options of the container start Apptainer on each node.
real=/usr/bin/srun image='' mounts='' options=()
while [[ $1 == --* ]]; do
    case $1 in
    --container-image=*) image=${1#*=} ;;
    --container-mounts=*) mounts=${1#*=} ;;
    --container-* | --no-container-*) ;;
    *) options+=("$1") ;;
    esac
    shift
done
[ -n "$image" ] || exec "$real" "${options[@]}" "$@"
exec "$real" "${options[@]}" apptainer -q exec --no-home --bind "$mounts" "$image" "$@"
"""


class Boxed:
    """Jobs on three nodes in an image, whose Python finds the packages of a folder `site`."""

    def __init__(self, cluster: Cluster, home: Path, sif: Path) -> None:
        self.cluster, self.user = cluster, User(cluster, home)
        self.image = str(home / "images" / "small.sif")
        cluster.run(["mkdir", "-p", str(home / "images")], check=True)
        cluster.run(["cp", str(sif), self.image], check=True)
        self.user.job("Name: torch\nVersion: 2.6.0\n", "site/torch-2.6.0.dist-info/METADATA")
        self.user.job("", "site/torch/__init__.py")
        self.user.job("", "site/helper/__init__.py")
        self.user.job("import torch\nimport helper\nprint('TRAINED', flush=True)\n", "train.py")
        self.words: dict[str, Any] = {
            "name": "boxed",
            "preflight": "quick",
            "launcher": "srun",
            "nodes": 3,
            "cpus_per_node": 1,
            "processes_per_node": 1,
            "script": str(home / "train.py"),
            "environment": {"python": sys.executable},
            "env": {"PYTHONPATH": str(home / "site")},
            "container": {"image": self.image, "binds": cluster.python_folders},
            "retry": {"max_attempts": 1},
        }

    def run(self, **words: Any) -> tuple[dict[str, Any], str, dict[str, Any]]:
        """The record of the node check, the job's log and the status."""
        run = self.user.submit(json.dumps({**self.words, **words}))
        status = self.user.until(run["run"], "COMPLETED", "FAILED", "STOPPED", "CANCELLED")
        log = (Path(run["folder"]) / "attempts" / "001" / "batch.log").read_text()
        attempt = Path(run["folder"]) / "attempts" / "001"
        assert (attempt / "node-check.json").exists(), (status, log)
        return outcome(run), log, status

    def on(self, node: str, command: str) -> None:
        self.cluster.run(["bash", "-c", command], user="root", node=node, check=True)


@pytest.fixture
def boxed(cluster_sid: Cluster, user_dir: Path, sif: Path) -> Iterator[Boxed]:
    boxed = Boxed(cluster_sid, user_dir, sif)
    yield boxed
    for node in ("n1", "n2", "n3"):
        boxed.on(node, f"umount -q {user_dir}/site {user_dir}/images; true")


def blamed(record: dict[str, Any]) -> dict[str, str]:
    return {f"{one['node']} {one['check']}": one["text"] for one in record["bad"]}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.prove
@pytest.mark.parametrize("preflight", ["quick", "full"])
def test_the_software_inside_is_checked_on_healthy_nodes(boxed: Boxed, preflight: str) -> None:
    real = {"env": {}, "script": boxed.user.job("import torch\n", "real.py")} if preflight == "full" else {}
    record, log, status = boxed.run(preflight=preflight, **real)
    assert (record["bad"], record["common"], status["state"]) == ([], [], "COMPLETED"), log
    assert not {"software", "image"} & set(record["not_checked"]), record
    assert "node check: 3 nodes passed" in log
    assert preflight == "quick" or "GB/s" in record["medians"]["all-reduce of all nodes"], record


@pytest.mark.slow
def test_a_fault_inside_the_image_is_named_on_its_node(boxed: Boxed) -> None:
    """Another PyTorch on one node, no image on another."""
    site, images = f"{boxed.user.home}/site", f"{boxed.user.home}/images"
    boxed.on("n2", f"mount -t tmpfs none {images}")
    older = "sed -i s/2.6.0/2.5.1/ /dev/shm/other/torch-2.6.0.dist-info/METADATA"
    boxed.on("n1", f"mkdir /dev/shm/other; cp -a {site}/. /dev/shm/other/; {older}; mount --bind /dev/shm/other {site}")
    try:
        record, log, status = boxed.run(nodes=4)
    finally:
        boxed.on("n1", f"umount {site}; rm -r /dev/shm/other")
    found = blamed(record)
    assert set(found) == {"n1 software", "n2 image"}, log
    assert found["n1 software"] == "torch is 2.5.1 here and 2.6.0 on the other nodes"
    assert found["n2 image"].startswith("the image does not start: FATAL:"), found
    assert images in found["n2 image"]
    assert status["attempts"][0]["class"] == "node_failure"


@pytest.mark.slow
@pytest.mark.prove
def test_the_step_of_a_container_of_srun_checks_inside(boxed: Boxed) -> None:
    folder = boxed.user.home / "bin"
    Path(boxed.user.job(SRUN, "bin/srun")).chmod(0o755)
    words = {"container": {**boxed.words["container"], "runtime": "pyxis"}}
    words["env"] = {**boxed.words["env"], "PATH": f"{folder}:{boxed.cluster.environment()['PATH']}"}
    record, log, status = boxed.run(**words)
    assert (record["bad"], record["common"], status["state"]) == ([], [], "COMPLETED"), log
    assert not {"software", "image"} & set(record["not_checked"]), (record, log)

    site = f"{boxed.user.home}/site"
    boxed.on("n3", f"mount -t tmpfs none {site}")
    record, log, _ = boxed.run(**words)
    assert list(blamed(record)) == ["n3 software"], (record, log)
    assert "finds no module helper" in blamed(record)["n3 software"]
