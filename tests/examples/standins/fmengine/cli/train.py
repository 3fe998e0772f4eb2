"""Stands in for FMEngine's cli/train.py (ec008887): its four groups of options, and DeepSpeed's own rank reading."""

import json
import os
from dataclasses import asdict, dataclass, field

import deepspeed
import torch
from fmengine.meet import meet  # type: ignore[import-not-found]
from transformers import HfArgumentParser


@dataclass
class ModelArguments:
    init_ckpt: str = field(default="llama-7B-init-test-ckpt")
    use_flash_attn: bool | None = field(default=False)
    use_fused_ops: bool | None = field(default=False)


@dataclass
class DeepspeedArguments:
    use_deepspeed: bool | None = field(default=True)
    rank: int = field(default=None)  # type: ignore[assignment]
    local_rank: int = field(default=None)  # type: ignore[assignment]
    pipe_parallel_size: int = field(default=1)
    model_parallel_size: int = field(default=1)
    world_size: int = field(default=None)  # type: ignore[assignment]
    seed: int = field(default=3407)
    deepspeed_config: str | None = field(default=None)
    window_size: int | None = field(default=0)


@dataclass
class DataArguments:
    data_path: str = field(default=None)  # type: ignore[assignment]
    num_workers: int = field(default=1)


@dataclass
class TrainerArguments:
    cache_dir: str | None = field(default=None)
    output_dir: str = field(default="./output")
    max_seq_len: int = field(default=128)
    train_steps: int = field(default=100)
    eval_steps: int = field(default=100)
    save_steps: int = field(default=100)
    log_steps: int = field(default=1)
    pretrain: bool = field(default=False)
    project_name: str = field(default="fmengine")
    experiment_name: str = field(default="experiment")
    dry_run: bool = field(default=False)
    res_dir: str = field(default="./output")


def main() -> None:
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainerArguments, DeepspeedArguments))
    groups = parser.parse_args_into_dataclasses()
    options = {name: value for group in groups for name, value in asdict(group).items()}
    assert options["use_deepspeed"]
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled on CPUs, for a minute
    deepspeed.init_distributed(dist_backend="gloo")
    world = torch.distributed.get_world_size()
    if options["local_rank"] is None:
        options["local_rank"] = int(os.environ["LOCAL_RANK"])
    assert world % (options["pipe_parallel_size"] * options["model_parallel_size"]) == 0
    with open(options["deepspeed_config"], encoding="utf-8") as file:
        json.load(file)
    meet(options | {"WANDB_MODE": os.environ.get("WANDB_MODE"), "WANDB_DIR": os.environ.get("WANDB_DIR")})


if __name__ == "__main__":
    main()
