"""Print the keys that an installed library reads as JSON, then let it read a file: `LIBRARY TEXT [REPLICAS]`.

Runs in the Python that has the library, and exits with the library's own error where it refuses the file.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from typing import Any


class Recorder(dict[str, Any]):
    """A configuration that notes each key that is looked up."""

    looked_up: dict[str, None] = {}  # noqa: RUF012  one record for all copies

    def get(self, key: str, default: Any = None) -> Any:
        """Look a key up."""
        self.looked_up[key] = None
        return super().get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Look a key up, and set it."""
        self.looked_up[key] = None
        return super().setdefault(key, default)

    def __contains__(self, key: object) -> bool:
        self.looked_up[str(key)] = None
        return super().__contains__(key)

    def keys(self) -> Any:  # DeepSpeed writes `key in data.keys()`
        """Look keys up."""
        return self

    def __copy__(self) -> Recorder:
        return self


class World:
    """Stands in for DeepSpeed's process group, so that no processes have to be started."""

    replicas = 1

    @staticmethod
    def get_rank(*_: object) -> int:
        """Rank 0."""
        return 0

    @staticmethod
    def get_world_size(*_: object) -> int:
        """The data-parallel size."""
        return World.replicas


def show(keys: dict[str, list[str]]) -> None:
    """Print the keys by mapping."""
    print("HPC-LAUNCH-KEYS " + json.dumps(keys), flush=True)


TRIAL = {
    "train_batch_size": None,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
}
"""What stands in for `auto`, which only Hugging Face fills in; a key that is not here is left out."""


def deepspeed(text: str, replicas: int) -> None:
    """A key at the top is one that is looked up; the classes of the mappings list theirs."""
    from deepspeed.runtime import config
    from deepspeed.runtime.activation_checkpointing import config as activation
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    models = {
        "zero_optimization": DeepSpeedZeroConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
    }
    config.dist = World
    config.DeepSpeedConfig(Recorder(train_batch_size=1))
    keys = {name: [field.alias or key for key, field in model.model_fields.items()] for name, model in models.items()}
    names = vars(activation)
    keys["activation_checkpointing"] = [value for key, value in names.items() if f"{key}_DEFAULT" in names]
    # The engine reads the first one before it creates the configuration.
    show({"": ["sequence_parallel_size", *Recorder.looked_up], **keys})
    data = json.loads(text)
    for key in [key for key, value in data.items() if value == "auto"]:
        data[key] = TRIAL.get(key)
    if data.get("train_batch_size") and not replicas:
        for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
            data.pop(key, None)
    World.replicas = replicas or 1
    config.DeepSpeedConfig({key: value for key, value in data.items() if value is not None})


OLDER = ["dynamo_backend", "fp16"]
"""Keys of an older form, which Accelerate translates (commands/config/config_args.py)."""
WITHOUT_OPTION = ["fsdp_ignored_modules"]
"""Keys that have no option (utils/launch.py, prepare_multi_gpu_env)."""


def accelerate(text: str) -> None:
    """`accelerate launch` has an option for each key of `fsdp_config`, ClusterConfig a field for each of the file."""
    import yaml
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    options = [option.dest for option in launch_command_parser()._actions]
    top = [field.name for field in dataclasses.fields(ClusterConfig)] + OLDER
    show({"": top, "fsdp_config": [name for name in options if name.startswith("fsdp_")] + WITHOUT_OPTION})
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "accelerate.yaml")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        # If the file has no number of processes, `accelerate launch` requires one on its command line.
        more = [] if "num_processes" in yaml.safe_load(text) else ["--num_processes", "2"]
        args = launch_command_parser().parse_args(["--config_file", path, *more, "train.py"])
        _validate_launch_command(args)
        prepare_multi_gpu_env(args)


def transformers() -> None:
    """A key of the Trainer's `fsdp_config` is one that is looked up. The Trainer has no other check."""
    from transformers.training_args import TrainingArguments

    for start in ({"version": 1}, {"version": 2}, {"xla": True}):
        arguments = TrainingArguments.__new__(TrainingArguments)
        arguments.fsdp, arguments.fsdp_config = True, Recorder(start)
        arguments.activation_checkpointing = arguments.gradient_checkpointing = False
        arguments._process_fsdp_args()
    show({"": list(Recorder.looked_up)})


def main() -> None:
    """Ask the library that the first argument names."""
    library, text, *replicas = sys.argv[1:]
    if library == "deepspeed":
        deepspeed(text, int(replicas[0]))
    elif library == "accelerate":
        accelerate(text)
    else:
        transformers()


main()
