"""Scripts that start several programs side by side: a job with roles that starts the same, and nothing is guessed.

The two scripts have the structure of those of open-r1 (slurm/train.slurm) and verl (ray_on_slurm.slurm).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_launch.from_script.convert import Conversion, compare, convert, is_same

HERE = Path(__file__).with_name("roles")
HEAD = "#!/bin/bash\n#SBATCH --nodes=%s --ntasks-per-node=1 --gpus-per-node=4\n"
NODES = "N=($(scontrol show hostnames $SLURM_JOB_NODELIST))\n"


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def converted(text: str, folder: Path) -> tuple[Conversion, dict[str, Any]]:
    """The conversion and the job file that it writes."""
    for name in ("old.sbatch", "train.py", "src/grpo.py", "client.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text if name == "old.sbatch" else "")
    found = convert(folder / "old.sbatch", output=folder / "job.yaml", site=None, environment={}, folder=str(folder))
    return found, yaml.safe_load(found.job_file)


def doubts(conversion: Conversion) -> list[str]:
    return [f"{account.line}: {account.why}" for account in conversion.script.of("not_understood")]


def test_a_server_on_the_last_node_and_a_training_on_the_others(tmp_path: Path) -> None:
    found, job = converted((HERE / "server_and_training.sbatch").read_text(), tmp_path)
    assert (job["nodes"], job["time"]) == (3, "10:00:00")
    server, train = job["roles"]["vllm_serve"], job["roles"]["train"]
    assert server == {
        "command": ["trl", "vllm-serve", "--model", "Qwen/Qwen2.5-1.5B", "--tensor_parallel_size", "2"],
    }
    assert (train["nodes"], train["script"], train["ends"]) == (2, "src/grpo.py", "job")
    assert train["args"][-1] == "--vllm_server_host=${role.vllm_serve.host}"
    assert train["env"]["ACCELERATE_LOG_LEVEL"] == "info"
    assert [one.partition(":")[0] for one in doubts(found)] == ["26", "57", "58"]
    assert "26: read as if it held; remove the role below where it does not" in doubts(found)
    rows = compare(found.script, found.prepare())
    assert is_same(rows), [row for row in rows if row.status == "different"]


def test_a_ray_cluster_and_its_driver_are_one_role(tmp_path: Path) -> None:
    found, job = converted((HERE / "ray_cluster.sbatch").read_text(), tmp_path)
    assert list(job["roles"]) == ["train"]
    train = job["roles"]["train"]
    assert (train["launcher"], train["nodes"], train["module"]) == ("ray", "rest", "project.trainer.main_ppo")
    assert train["container"] == {"image": "/path/to/ngc.sif", "binds": ["/path/to/project"]}
    assert "trainer.nnodes=2" in train["args"]
    assert doubts(found) == []
    rows = compare(found.script, found.prepare())
    assert is_same(rows), [row for row in rows if row.status == "different"]


SERVE = "srun %s vllm serve my/model --port 8000 > server.log 2>&1 &\nsleep 60\n"
CLIENT = "srun %s python client.py --url http://%s:8000\n"


@pytest.mark.parametrize(
    ("nodes", "body", "expected", "unclear"),
    [
        (
            "2",
            NODES + "S=${N[0]}\n" + SERVE % "-N1 -n1 -w $S" + CLIENT % ("-N1 -n1 --nodelist=${N[1]}", "$S"),
            {"serve": {}, "train": {"args": {"url": "http://${role.serve.host}:8000"}}},
            [],
        ),
        (
            "2",
            NODES + SERVE % "-n1 -w ${N[0]}" + CLIENT % ("--overlap --gres=none -N1 -n1 -w ${N[0]}", "${N[0]}"),
            {"serve": {}, "train": {"beside": "serve", "args": {"url": "http://${role.serve.host}:8000"}}},
            [],
        ),
        (
            "2",
            NODES + SERVE % "-n1 -w ${N[0]}" + CLIENT % ("--overlap -N1 -n1 -w ${N[0]}", "localhost"),
            {"serve": {}, "train": {"beside": "serve"}},
            ["6: which GPUs of its node"],
        ),
        (
            "1",
            SERVE % "--overlap -n1 --gpus-per-node=3" + CLIENT % ("--overlap -n1 --gpus-per-node=1", "localhost"),
            {"serve": {"gpus": 3}, "train": {"gpus": 1, "beside": "serve"}},
            [],
        ),
        ("2", SERVE % "-n1" + CLIENT % ("-n1", "$S"), {"serve": {}, "train": {}}, ["3: on which nodes", "5: on which"]),
        (
            "3",
            NODES + 2 * (SERVE % "-N1 -n1 -w ${N[0]}") + CLIENT % ("-N1 -n1 -w ${N[2]}", "${N[0]}"),
            {"serve": {}, "train": {}},
            ["6: `serve` once more: use `replicas:`"],
        ),
        (
            "2",
            NODES + "srun -N1 -n1 -w ${N[0]} ray start --head --resources=x --block &\nsrun -N1 -n1 python client.py\n",
            {"train": {"launcher": "ray", "script": "client.py"}},
            ["4: `--resources` of ray start"],
        ),
        (
            "2",
            NODES + SERVE % "-N1 -n1 -w ${N[0]}" + "srun python a.py\nsrun python train.py\n",
            {},
            ["4: another", "7: another"],
        ),
        ("2", "srun python train.py &\nwait\n", {}, []),
    ],
    ids=[
        "two-nodes",
        "one-of-two",
        "shared-gpus",
        "one-node",
        "no-nodelist",
        "twice",
        "ray-option",
        "two-in-front",
        "waits",
    ],
)
def test_what_the_script_says_is_taken_and_the_rest_is_named(
    nodes: str, body: str, expected: dict[str, Any], unclear: list[str], tmp_path: Path
) -> None:
    found, job = converted(HEAD % nodes + body, tmp_path)
    roles = job.get("roles", {})
    assert roles.keys() == expected.keys()
    for name, keys in expected.items():
        assert {key: roles[name].get(key) for key in keys} == keys
    said = doubts(found)
    assert [one[: len(want)] for one, want in zip(said, unclear, strict=True)] == unclear, said
