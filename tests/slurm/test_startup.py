"""Starts that get stuck on one node of a real Slurm: `status` names the node while it happens, `why` afterwards."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.busy import patience
from tests.slurm.user import User

WITHIN_S = 30.0
"""How soon after the start of the script `status` has to name the node."""

NEVER_UP = '[ "${SLURM_NODEID:-0}" = 0 ] || [ -z "${SLURM_STEP_ID:-}" ] || sleep 300'
BLOCKED = '[ "${SLURM_NODEID:-0}" = 0 ] || export MASTER_ADDR=10.77.0.250'
"""BASH_ENV of the script of each node. No host has that address."""

APPTAINER = """#!/bin/bash
[ "$SLURM_NODEID" = 0 ] || {{ {fault}; }}
while [ "$1" != {image} ]; do shift; done
shift
exec "$@"
"""
NO_IMAGE = "echo 'FATAL:   could not open image /x.sif: lstat /x.sif: no such file or directory' >&2; exit 255"


def stuck(user: User, name: str, setup: str, **keys: str) -> dict[str, Any]:
    """A submitted run of two nodes that runs these commands before the script of each node."""
    file = user.cluster.write(user.home / f"{name}.sh", setup)
    profile = {"name": name, "extends": "testcluster", "prelude": [{"raw": f"export BASH_ENV={file}"}]}
    user.job(json.dumps(profile), f"sites/{name}.yaml")
    lines = [f"name: {name}", f"site: {name}", "nodes: 2", "cpus_per_node: 1", "retry: 1"]
    lines += ["launcher: {name: torchrun, options: [--rdzv-conf=timeout=30]}", "command: sleep 60"]
    return user.submit("\n".join([*lines, *(f"{key}: {value}" for key, value in keys.items()), ""]))


def in_image(user: User, name: str, fault: str) -> dict[str, Any]:
    """The same in an image that one node cannot start; a stand-in takes the place of Apptainer."""
    image = user.cluster.write(user.home / "image.sif", "")
    program = user.job(APPTAINER.format(image=image, fault=fault), f"{name}-bin/apptainer")
    user.cluster.run(["chmod", "755", program], check=True)
    container = f"{{image: {image}, runtime: apptainer}}"
    return stuck(user, name, f"PATH={Path(program).parent}:$PATH", container=container)


@pytest.mark.prove
@pytest.mark.torch
@pytest.mark.slow
def test_a_node_that_the_others_wait_for_is_named_while_they_wait_and_afterwards(user: User) -> None:
    runs = {
        "not started": stuck(user, "never-up", NEVER_UP),
        "still starting its container": in_image(user, "slow-image", "exec sleep 300"),
        "still connecting to the rendezvous": stuck(user, "blocked", BLOCKED),
    }
    without = in_image(user, "no-image", NO_IMAGE)
    first, unnamed = time.monotonic(), dict(runs)
    while unnamed:
        for words, run in list(unnamed.items()):
            status = user.status(run["run"])
            assert time.monotonic() < first + patience(90), status
            nodes = status["attempts"][0]["nodes"]
            if (status.get("phase"), status.get("waiting_for")) != ("rendezvous", nodes[1:]):
                continue
            if f"rendezvous: 1 of 2 nodes; {nodes[1]} {words}" in user.launch("status", run["run"]).stdout:
                assert time.time() - status["attempts"][0]["started"] < patience(WITHIN_S)
                del unnamed[words]
    status = user.until(without["run"], "FAILED")
    assert (status["state"], status["attempts"][0]["class"]) == ("FAILED", "container_error"), status
    assert f"first on {status['attempts'][0]['nodes'][1]};" in status["reason"]
    for run in list(runs.values())[1:]:
        user.launch("cancel", run["run"])
    words, run = next(iter(runs.items()))
    user.until(run["run"], "FAILED")
    found = json.loads(user.launch("why", run["run"], "--json").stdout)
    missing = user.status(run["run"])["attempts"][0]["nodes"][1]
    assert found["start"] == f"rendezvous: 1 of 2 nodes; {missing} {words}"
    assert found["start"] in user.status(run["run"])["reason"]
    assert json.loads(user.launch("nodes", "list", "--json").stdout) == []
