"""Stands in for GPT-NeoX's train.py (ea7aefd8): the configuration by argument, the ranks from Slurm or the launcher."""

import argparse
import base64
import json
import os

import deepspeed
from megatron.meet import meet  # type: ignore[import-not-found]


def main() -> None:
    parser = argparse.ArgumentParser(description="GPT-NeoX Configuration", allow_abbrev=False)
    parser.add_argument("--megatron_config")
    parser.add_argument("--deepspeed_config")
    given, _ = parser.parse_known_args()
    config = json.loads(base64.urlsafe_b64decode(given.megatron_config))
    if config.get("deepspeed_slurm"):
        os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
        os.environ["RANK"] = os.environ["SLURM_PROCID"]
        os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
    assert int(os.environ["WORLD_SIZE"]) == config["global_num_gpus"]
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled on CPUs, for a minute
    deepspeed.init_distributed(
        dist_backend=config["distributed_backend"],
        auto_mpi_discovery=True,
        distributed_port=int(os.getenv("MASTER_PORT", "6000")),
    )
    meet(config)


if __name__ == "__main__":
    main()
