"""Trainings inside a real Apptainer, on two nodes of a real Slurm, as an ordinary user.

The image holds no Python: the tests' own is bound in, as a team binds an environment beside a bare image.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.requirements import REPOSITORY
from tests.marks import prove
from tests.slurm.test_continuation import COUNTING
from tests.slurm.user import SMALL, User

EXAMPLE = REPOSITORY / "examples" / "tiny-gpt" / "job.yaml"


@pytest.fixture
def user(cluster_sid: Cluster, user_dir: Path) -> User:
    return User(cluster_sid, user_dir)


@pytest.fixture
def inside(cluster_sid: Cluster, sif: Path) -> list[str]:
    """The options of `submit` that put a job into the image."""
    binds = cluster_sid.python_folders
    return ["--set", f"container.image={sif}", "--set", f"container.binds={json.dumps(binds)}"]


@pytest.mark.prove  # tests.slurm.test_table trains in an image, too
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_the_example_trains_in_an_image(user: User, inside: list[str], launcher: str) -> None:
    name = "job.yaml" if launcher == "torchrun" else "job-deepspeed.yaml"
    done = user.launch("submit", str(EXAMPLE.with_name(name)), "--wait", "--set", "args.steps=10", *SMALL, *inside)
    assert done.returncode == 0, done.stdout + done.stderr
    status = user.status()
    assert (status["state"], status["progress"]["step"]) == ("COMPLETED", 10)
    log = user.launch("logs", "@last").stdout
    assert set(re.findall(r"rank (\d) of 4 on host (n\d)", log)) == user.places(2)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "warning", "listen"),
    [prove("torchrun", "USR1", "USR1"), prove("srun", "USR1", "USR1"), ("torchrun", "file", "hook")],
)
def test_a_training_inside_is_warned_and_goes_on(
    user: User, inside: list[str], launcher: str, warning: str, listen: str
) -> None:
    """The image has nothing of hpc-launch: the hooks come by the run folder."""
    sets = ["--set", f"launcher={launcher}", "--set", f"checkpoint.warn={warning}", "--set", f"args.listen={listen}"]
    done = user.launch("drill", user.job(COUNTING), "--json", *sets, *inside)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["resumed_at_step"] == found["checkpoint_step"] + 1


@pytest.mark.torch
@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_the_network_is_measured_from_inside(user: User, inside: list[str], launcher: str) -> None:
    words = {
        "name": "bench",
        "launcher": launcher,
        "nodes": 2,
        "cpus_per_node": 1,
        "processes_per_node": 2,
        "environment": {"python": sys.executable},
        "script": user.job("", "nothing.py"),
    }
    done = user.launch("doctor", user.job(json.dumps(words)), "--bench", "--json", *inside)
    levels = json.loads(done.stdout)
    measured = levels[-1]["values"]["measured"]
    assert (levels[-1]["name"], levels[-1]["state"]) == ("bench", "ok"), done.stdout + done.stderr
    assert (measured["nodes"], measured["per_node"]) == (["n1", "n2"], 2)
    assert set(measured["curves"]) | set(measured["not_measured"]) == {"all-reduce", "all-gather", "reduce-scatter"}


def test_variables_and_arguments_arrive_inside_as_written(user: User, inside: list[str]) -> None:
    dump = user.home / "dump.py"
    user.job("import json, os, sys\nprint('DUMP' + json.dumps([sys.argv[1:], dict(os.environ)]))\n", "dump.py")
    hostile = {"HCA": "mlx5_0,mlx5_1", "SHELL_TEXT": "$(id) `id` $HOME \\ \"' ;", "LINES": "a\nb", "EQUALS": "=x=,y="}
    arguments = ["$(id)", "a b", "", "-x", ":", "ünï", "a\nb"]
    text = {
        "name": "dump",
        "launcher": "srun",
        "nodes": 2,
        "command": [sys.executable, str(dump)],
        "args": arguments,
        "env": hostile,
    }
    copied = ["--set", "container.stage=node"]  # the image is read from the nodes' memory
    done = user.launch("submit", user.job(json.dumps(text)), "--wait", *inside, *copied)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = user.home.glob("runs/dump-*/attempts/001/batch.log")
    assert "staged: copied to 2 nodes, reused on 0; 0 use the original" in log.read_text()
    dumps = re.findall(r"DUMP(.*)", user.launch("logs", "@last", "--node", "1").stdout)
    assert len(dumps) == 1
    argv, environment = json.loads(dumps[0])
    assert argv == arguments
    assert {name: environment.get(name) for name in hostile} == hostile
    assert environment["RANK"] == "1"
    assert environment["APPTAINER_CONTAINER"].startswith(f"/dev/shm/hpc-launch-{user.cluster.uid}/")
    for node in ("n1", "n2"):
        assert user.cluster.node_exec(node, ["find", "/dev/shm", "-type", "f"]).stdout == "", "memory is given back"
