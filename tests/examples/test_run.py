"""The examples on two nodes of a real Slurm: our own codes train, a stand-in takes the place of each other one."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.examples import tiny_model
from tests.examples.codes import CODES, checkout
from tests.marks import prove
from tests.slurm.user import User

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SMALL = {"nodes": 2, "processes_per_node": 2, "gpus_per_node": 0, "time": "00:10:00"}


@dataclass(frozen=True)
class Team:
    """A user with checkouts of several codes."""

    user: User
    tmp: Path

    def checkout(self, job: str) -> str:
        """A checkout on the cluster's shared storage; the path of its job file there."""
        local = checkout(CODES[job], self.tmp)
        there = self.user.home / "codes"
        shutil.copytree(self.tmp, there)
        for path in (there, *there.rglob("*")):
            os.chown(path, self.user.cluster.uid, self.user.cluster.uid)
        return str(there / local.relative_to(self.tmp))

    def train(self, job: str, **sets: Any) -> str:
        """Submit to the end, which has to be a good one; the output of all ranks."""
        options = [word for key, value in (SMALL | sets).items() for word in ("--set", f"{key}={_yaml(value)}")]
        return self.user.completed(self.checkout(job), *options)

    @property
    def folder(self) -> Path:
        done = self.user.launch("status", "@last")
        (folder,) = re.findall(r"^ *folder +(\S+)", done.stdout, re.MULTILINE)
        return Path(folder)


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.fixture
def team(cluster: Cluster, user_dir: Path, tmp_path: Path) -> Team:
    folder = tmp_path / "codes"
    folder.mkdir()
    return Team(User(cluster, user_dir), folder)


def met(output: str, processes: int = 4) -> list[dict[str, Any]]:
    """What each process of a stand-in said, once they are known to have been one group over two nodes."""
    said = sorted((json.loads(line) for line in re.findall(r"STANDIN (\{.*\})", output)), key=lambda one: one["rank"])
    assert [one["rank"] for one in said] == list(range(processes)), output
    assert {(one["world"], one["sum"]) for one in said} == {(processes, processes * (processes + 1) / 2)}
    assert [one["local_rank"] for one in said] == [*range(processes // 2)] * 2
    assert [one["host"] for one in said] == sorted(one["host"] for one in said)
    assert len({one["host"] for one in said}) == 2
    return said


@pytest.mark.prove
def test_plain_ddp_as_nanogpt_does_it(team: Team) -> None:
    output = team.train("nanogpt/job.yaml")
    ranks = dict(re.findall(r"rank (\d) of 4 on host (n\d), 2 micro steps each", output))
    assert len(ranks) == 4
    assert ranks["0"] == ranks["1"] != ranks["2"] == ranks["3"]
    losses = [float(loss) for loss in re.findall(r"iter \d+: loss ([\d.]+)", output)]
    assert len(losses) == 30
    assert losses[-1] < losses[0]
    assert (team.folder / "out" / "ckpt.pt").is_file()


@pytest.mark.torch("transformers", "deepspeed")
@pytest.mark.parametrize("job", [prove("hf-trainer/job-zero2.yaml"), prove("hf-trainer/job-fsdp.yaml")])
def test_the_trainer_fine_tunes(job: str, team: Team) -> None:
    tiny_model.make(_folder(team, "hf-trainer"))
    arguments = {"args.use_cpu": True, "args.max_steps": 3, "args.block_size": 16, "args.save_steps": 2}
    output = team.train(job, processes_per_node=1, **arguments, **{"args.report_to": "none", "trackers": []})
    # Accelerate, below the Trainer, leaves FSDP out on CPUs; that its file was read is what can be seen here.
    kind, file = ("DEEPSPEED", "deepspeed.json") if "zero2" in job else ("MULTI_CPU", "fsdp.json")
    assert dict(re.findall(r"rank (\d) of 2, (\w+)", output)) == dict.fromkeys("01", kind)
    assert len(re.findall(r"'loss': '?[\d.]+", output)) == 3
    assert (team.folder / "checkpoints" / "checkpoint-2").is_dir()
    assert (team.folder / "checkpoints" / "model.safetensors").is_file()
    assert (team.folder / "attempts" / "001" / file).is_file()


@pytest.mark.torch("accelerate", "deepspeed")
@pytest.mark.parametrize(
    ("job", "kind"),
    [
        prove("accelerate/job.yaml", "MULTI_CPU"),
        prove("accelerate/job-zero2.yaml", "DEEPSPEED"),
    ],
)
def test_a_code_for_accelerate_launch_trains_under_torchrun(job: str, kind: str, team: Team) -> None:
    output = team.train(job, processes_per_node=1, **{"args.cpu": True})
    ranks = dict(re.findall(r"rank (\d) of 2, (\w+), precision bf16", output))
    assert ranks == dict.fromkeys("01", kind)
    losses = [float(loss) for loss in re.findall(r"epoch \d/3: loss ([\d.]+)", output)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


@pytest.mark.prove
@pytest.mark.torch("deepspeed")
def test_gpt_neox_starts_its_own_processes(team: Team) -> None:
    folder = _folder(team, "gpt-neox") / "configs"
    folder.mkdir()
    (folder / "2-7B.yml").write_text('{"pipe-parallel-size": 1, "model-parallel-size": 2, "num-layers": 32,\n'
                                     '"train_micro_batch_size_per_gpu": 4, "distributed_backend": "gloo"}')  # fmt: skip
    (folder / "local_setup.yml").write_text('{"data_path": "data/enwik8/enwik8_text_document", "save": "checkpoints"}')
    said = met(team.train("gpt-neox/job.yaml"))
    options = said[0]["options"]
    assert (options["global_num_gpus"], options["train_batch_size"]) == (4, 8)
    assert options["launcher"] == "slurm"


@pytest.mark.prove
def test_openseek_has_a_stage_on_each_node_and_slices_inside(team: Team) -> None:
    said = met(
        team.train("openseek/job.yaml", **{"parallel.tp": 2, "env.PYTHONPATH": "third_party_note/Megatron-LM:."})
    )
    assert [(one["options"]["stage"], one["options"]["slice"]) for one in said] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    options = said[0]["options"]
    assert (options["pipeline_model_parallel_size"], options["tensor_model_parallel_size"]) == (2, 2)
    assert options["use_distributed_optimizer"]
    assert options["data_path"] == ["0.8", "data/zh_cc_text_document", "0.2", "data/code_text_document"]


def _folder(team: Team, name: str) -> Path:
    """The folder of a code, to put into it what the team has beside the job file."""
    folder = team.tmp / name
    folder.mkdir()
    return folder
