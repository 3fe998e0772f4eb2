"""Print the keys that the installed DeepSpeed reads, as JSON for `key_tables`. Runs in DeepSpeed's Python."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, get_args

import deepspeed
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


class Recorder(dict[str, Any]):
    """A configuration that notes each key that is looked up, with the kind of its default."""

    looked_up: dict[str, str] = {}  # noqa: RUF012  one record for all copies

    def get(self, key: str, default: Any = None) -> Any:
        """Look a key up, with its default."""
        known = self.looked_up.get(key, "any")
        self.looked_up[key] = known if known != "any" else kind_of(type(default))
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.looked_up.setdefault(str(key), "any")
        return super().__contains__(key)

    def keys(self) -> Any:  # DeepSpeed writes `key in data.keys()`
        """Look keys up."""
        return self

    def __copy__(self) -> Recorder:
        return self


def kind_of(annotation: Any) -> str:
    """The kind of value that a Python type stands for; "any" where the type does not say."""
    types = [item for item in get_args(annotation) if item is not type(None)] or [annotation]
    if len(types) > 1 or not isinstance(types[0], type):
        return "any"
    found = types[0]
    if issubclass(found, bool):
        return "bool"
    if issubclass(found, int):
        return "int"
    if issubclass(found, float):
        return "number"
    if issubclass(found, (str, Enum)) or found.__name__ == "Path":
        return "text"
    return "object" if issubclass(found, dict) or hasattr(found, "model_fields") else "any"


def main() -> None:
    """Print the table."""
    config.DeepSpeedConfig(Recorder(train_batch_size=1))
    mappings = {"top_level": dict(Recorder.looked_up)}
    deprecated: dict[str, dict[str, str]] = {}
    for name, model in MODELS.items():
        fields = {field.alias or key: field for key, field in model.model_fields.items()}
        mappings[name] = {key: kind_of(field.annotation) for key, field in fields.items()}
        extras = {key: field.json_schema_extra or {} for key, field in fields.items()}
        aliases = {key: field.alias or key for key, field in model.model_fields.items()}
        old = {
            key: aliases.get(extra["new_param"], extra["new_param"])
            for key, extra in extras.items()
            if extra.get("deprecated") and extra.get("new_param")
        }
        deprecated |= {name: old} if old else {}
    names = {key: value for key, value in vars(activation).items() if key.startswith("ACT_CHKPT_")}
    mappings["activation_checkpointing"] = {
        value: kind_of(type(names[f"{key}_DEFAULT"]))
        for key, value in names.items()
        if isinstance(value, str) and f"{key}_DEFAULT" in names
    }
    removed = {
        "top_level": sorted(getattr(config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", ())),
        "zero_optimization": sorted(getattr(config, "_REMOVED_ZERO_CONFIG_KEYS", ())),
    }
    for name, gone in removed.items():
        for key in gone:
            mappings[name].pop(key, None)
    table = {"release": deepspeed.__version__, "mappings": mappings, "removed": removed, "deprecated": deprecated}
    print(json.dumps(table))


main()
