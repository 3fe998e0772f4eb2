"""Stands in for GPT-NeoX's deepy.py (ea7aefd8): its options, what it counts, and DeepSpeed's launcher that it starts.

The launcher is the real one. As there, the configuration goes to train.py as two arguments in base64.
"""

import argparse
import base64
import json
import os
from typing import Any

import deepspeed.launcher.runner
import yaml

RUNNER = {
    "hostfile": None,
    "include": None,
    "exclude": None,
    "num_nodes": -1,
    "num_gpus": None,
    "master_port": 29500,
    "master_addr": None,
    "launcher": "pdsh",
    "force_multi": False,
    "no_ssh_check": False,
}
OTHERS = {
    *"pipe_parallel_size model_parallel_size num_layers hidden_size train_micro_batch_size_per_gpu train_iters".split(),
    *"deepspeed_slurm deepspeed_mpi data_path save load log_dir distributed_backend".split(),
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="GPT-NeoX Configuration", allow_abbrev=False)
    parser.add_argument("user_script")
    parser.add_argument("--conf_dir", "-d")
    parser.add_argument("conf_file", nargs="+")
    for name in "wandb_group wandb_run_name wandb_team eval_results_prefix".split():
        parser.add_argument(f"--{name}")
    parser.add_argument("--eval_tasks", nargs="+")
    parser.add_argument("--iteration", type=int)
    parser.add_argument("-H", "--hostfile")
    parser.add_argument("-i", "--sample_input_file")
    parser.add_argument("-o", "--sample_output_file")
    parser.add_argument("--autotuning", choices=("tune", "run"))
    return parser.parse_args()


def configuration(files: list[str]) -> dict[str, Any]:
    """All files together; a key in two of them, or one that is not known, ends it."""
    config: dict[str, Any] = {}
    for name in files:
        path = name if name.endswith((".yml", ".json")) else f"{name}.yml"
        with open(path, encoding="utf-8") as file:
            for key, value in yaml.safe_load(file).items():
                if key in config:
                    raise ValueError(f"Conf file {name} has the following duplicate keys: {key}")
                config[key.replace("-", "_")] = value
    unknown = set(config) - set(RUNNER) - OTHERS
    if unknown:
        raise ValueError(f"NeoXArgs keys cannot be validated: {unknown}")
    return config


def gpus(hostfile: str) -> int:
    with open(hostfile, encoding="utf-8") as file:
        return sum(int(line.partition("slots=")[2]) for line in file if line.strip())


def main() -> None:
    given = options()
    assert os.path.exists(given.user_script), f"User script could not be found: {given.user_script}"
    config = configuration([os.path.join(given.conf_dir or "", name) for name in given.conf_file])
    hostfile = config.get("hostfile") or os.environ.get("DLTS_HOSTFILE", "/job/hostfile")
    config["global_num_gpus"] = gpus(hostfile)
    replicas = config["global_num_gpus"] / config.get("pipe_parallel_size", 1) / config.get("model_parallel_size", 1)
    assert replicas % 1 == 0, "(global_num_gpus / pp_size) / mp_size must be a whole number"
    config["train_batch_size"] = int(config["train_micro_batch_size_per_gpu"] * replicas)
    arguments = []
    for key, default in RUNNER.items():
        value = config.get(key, default)
        if key == "force_multi" and (config.get("deepspeed_slurm") or config.get("deepspeed_mpi")):
            value = True
        if value != default:
            arguments += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    if "DLTS_HOSTFILE" in os.environ:
        arguments += ["--hostfile", os.environ["DLTS_HOSTFILE"]]
    if "MASTER_ADDR" in os.environ:
        arguments += ["--master_addr", os.environ["MASTER_ADDR"]]
    if config.get("deepspeed_slurm"):  # it asks for its own ranks here, too
        assert os.environ["SLURM_LOCALID"] == os.environ["SLURM_PROCID"] == "0"
        assert "SLURM_NTASKS" in os.environ
    deepspeed_config = {"train_batch_size": config["train_batch_size"]}
    arguments += [given.user_script, "--deepspeed_config", encoded(deepspeed_config)]
    arguments += ["--megatron_config", encoded(config)]
    deepspeed.launcher.runner.main(arguments)


def encoded(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


if __name__ == "__main__":
    main()
