"""Let the installed Accelerate read a configuration as `accelerate launch` does: `check_accelerate.py YAML`.

Exits with Accelerate's own error where it refuses the configuration. Runs in the Python that has Accelerate.
"""

from __future__ import annotations

import os
import sys
import tempfile

import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env


def main() -> None:
    """Read the configuration."""
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
