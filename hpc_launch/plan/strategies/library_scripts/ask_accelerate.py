"""Print the keys that the installed Accelerate reads as JSON, then let it read a file: `ask_accelerate.py YAML`.

Exits with Accelerate's own error where it refuses the file. Accelerate has an option of `accelerate launch` for each
key of `fsdp_config`, and a field of ClusterConfig for each key of the file. Runs in the Python that has Accelerate.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile

import yaml
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

OLDER = ["dynamo_backend", "fp16"]
"""Keys of an older form, which Accelerate translates (commands/config/config_args.py)."""
WITHOUT_OPTION = ["fsdp_ignored_modules"]
"""Keys that have no option (utils/launch.py, prepare_multi_gpu_env)."""


def main() -> None:
    """Print the keys and read the file."""
    options = [option.dest for option in launch_command_parser()._actions]
    mappings = {
        "": [field.name for field in dataclasses.fields(ClusterConfig)] + OLDER,
        "fsdp_config": [name for name in options if name.startswith("fsdp_")] + WITHOUT_OPTION,
    }
    print(json.dumps({"mappings": mappings}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "accelerate.yaml")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(sys.argv[1])
        # If the file has no number of processes, `accelerate launch` requires one on its command line.
        more = [] if "num_processes" in yaml.safe_load(sys.argv[1]) else ["--num_processes", "2"]
        args = launch_command_parser().parse_args(["--config_file", path, *more, "train.py"])
        _validate_launch_command(args)
        prepare_multi_gpu_env(args)


main()
