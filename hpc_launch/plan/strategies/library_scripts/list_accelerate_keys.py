"""Print the keys that the installed Accelerate reads, as JSON for `key_tables`. Runs in Accelerate's Python.

Accelerate has an option of `accelerate launch` for each key of `fsdp_config`, and a field of ClusterConfig for each key
of the file.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import accelerate
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import constants

CHOICES = {
    "sharding_strategy": constants.FSDP_SHARDING_STRATEGY,
    "auto_wrap_policy": constants.FSDP_AUTO_WRAP_POLICY,
    "backward_prefetch": constants.FSDP_BACKWARD_PREFETCH,
    "state_dict_type": constants.FSDP_STATE_DICT_TYPE,
}


def kind_of(option: Any) -> str:
    """The kind of value that an option takes: truth values are the words `true` and `false` there."""
    if str(option.default).lower() in {"true", "false"}:
        return "bool"
    return "int" if option.type is int else "text"


def main() -> None:
    """Print the table."""
    options = {option.dest: option for option in launch_command_parser()._actions if option.dest.startswith("fsdp_")}
    mappings = {
        "top_level": dict.fromkeys((field.name for field in dataclasses.fields(ClusterConfig)), "any"),
        "fsdp_config": {name: kind_of(option) for name, option in options.items()},
    }
    defaults = {name: str(option.default) for name, option in options.items() if option.default is not None}
    table = {"release": accelerate.__version__, "mappings": mappings, "choices": CHOICES, "defaults": defaults}
    print(json.dumps(table))


main()
