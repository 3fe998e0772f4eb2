"""Print the keys that the installed DeepSpeed reads as JSON, then let it read a file.

`ask_deepspeed.py '[CONFIGURATION, REPLICAS]'`; exits with DeepSpeed's own error where it refuses the configuration.
Runs in the Python that has DeepSpeed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from deepspeed.runtime import config
from deepspeed.runtime.activation_checkpointing import config as activation
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig

MODELS = {
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
}
TRIAL = {
    "train_batch_size": None,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
}
"""What stands in for `auto`, which only Hugging Face fills in; a key that is not here is left out."""


class Recorder(dict[str, Any]):
    """A configuration that notes each key that is looked up."""

    # The engine reads the first one before it creates the configuration. One record for all copies.
    looked_up: dict[str, None] = {"sequence_parallel_size": None}  # noqa: RUF012

    def get(self, key: str, default: Any = None) -> Any:
        """Look a key up."""
        self.looked_up[key] = None
        return super().get(key, default)

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


def list_keys() -> dict[str, Any]:
    """The keys by mapping, those that this release refuses because it removed them, and the deprecated ones."""
    removed = {
        "": tuple(getattr(config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", ())),
        "zero_optimization": tuple(getattr(config, "_REMOVED_ZERO_CONFIG_KEYS", ())),
    }
    config.DeepSpeedConfig(Recorder(train_batch_size=1))
    mappings = {"": list(Recorder.looked_up)}
    deprecated: dict[str, str] = {}
    for name, model in MODELS.items():
        names = {key: field.alias or key for key, field in model.model_fields.items()}
        mappings[name] = list(names.values())
        for key, field in model.model_fields.items():
            extra = field.json_schema_extra or {}
            if extra.get("deprecated") and extra.get("new_param"):
                deprecated[f"{name}.{names[key]}"] = names.get(extra["new_param"], extra["new_param"])
    mappings["activation_checkpointing"] = [
        value for key, value in vars(activation).items() if f"{key}_DEFAULT" in vars(activation)
    ]
    for name, gone in removed.items():
        mappings[name] = [key for key in mappings[name] if key not in gone]
    names_of_removed = [f"{name}.{key}".lstrip(".") for name, gone in removed.items() for key in gone]
    return {"mappings": mappings, "removed": names_of_removed, "deprecated": deprecated}


def main() -> None:
    """Print the keys and read the configuration."""
    print(json.dumps(list_keys()), flush=True)
    data, replicas = json.loads(sys.argv[1])
    for key in [key for key, value in data.items() if value == "auto"]:
        data[key] = TRIAL.get(key)
    if data.get("train_batch_size") and not replicas:
        for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
            data.pop(key, None)
    World.replicas = replicas or 1
    config.dist = World
    config.DeepSpeedConfig({key: value for key, value in data.items() if value is not None})


main()
