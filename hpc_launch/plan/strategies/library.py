"""The library's own word on a file, where it is installed: DeepSpeed's configuration classes, Accelerate's parser.

They run in a Python of their own, for importing them takes seconds, prints, and needs torch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Literal

from hpc_launch.base.findings import Finding, Place

PATIENCE_S = 120
"""An environment on a parallel file system may take a minute to import torch for the first time."""

_DEEPSPEED = """
import json, sys
data, replicas = json.loads(sys.argv[1])
from deepspeed.runtime import config as module
class World:
    get_rank = staticmethod(lambda *ignored: 0)
    get_world_size = staticmethod(lambda *ignored: replicas)
module.dist = World
trial = {"train_batch_size": None, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
trial["gradient_clipping"] = 1.0
for key in [key for key, value in data.items() if value == "auto"]:
    data[key] = trial.get(key)
if data.get("train_batch_size") and not replicas:
    for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        data.pop(key, None)
data = {key: value for key, value in data.items() if value is not None}
replicas = replicas or 1
module.DeepSpeedConfig(data)
"""

_ACCELERATE = """
import os, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "accelerate.yaml")
    with open(path, "w") as stream:
        stream.write(sys.argv[1])
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    import yaml
    # Without a number in the file, `accelerate launch` wants one on its command line.
    more = [] if "num_processes" in yaml.safe_load(sys.argv[1]) else ["--num_processes", "2"]
    args = launch_command_parser().parse_args(["--config_file", path, *more, "train.py"])
    _validate_launch_command(args)
    from accelerate.utils.launch import prepare_multi_gpu_env
    prepare_multi_gpu_env(args)
"""

Library = Literal["deepspeed", "accelerate"]


def ask_deepspeed(text: str, *, replicas: int | None = None, python: str | None = None) -> list[Finding]:
    """What DeepSpeed's own classes say to a configuration; nothing where DeepSpeed is not installed."""
    try:
        argument = json.dumps([json.loads(text), replicas])
    except ValueError:
        return []  # not JSON: `parse_json` has said so
    return _ask("deepspeed", _DEEPSPEED, argument, "HL619", python)


def ask_accelerate(text: str, *, python: str | None = None) -> list[Finding]:
    """What `accelerate launch` says to its YAML file; nothing where Accelerate is not installed."""
    return _ask("accelerate", _ACCELERATE, text, "HL629", python)


def _ask(library: Library, code: str, argument: str, finding: str, python: str | None) -> list[Finding]:
    if python is None and importlib.util.find_spec(library) is None:
        return []
    # A configuration is checked for what it says, not for this machine: no GPU is looked for.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    place = Place(library)
    try:
        done = subprocess.run(
            [python or sys.executable, "-c", code, argument],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no answer in {PATIENCE_S} s"
        return [Finding(finding, f"{library} could not be asked: {reason}", place, None, "warning")]
    if done.returncode == 0:
        return []
    last = next((line for line in reversed(done.stderr.splitlines()) if line and not line[0].isspace()), "no word")
    if last.startswith("ModuleNotFoundError") or "ImportError" in last:
        return [Finding(finding, f"{library} could not be asked: {last}", place, None, "warning")]
    hint = "the file does not suit the installed release, or hpc-launch does not know it yet"
    return [Finding(finding, f"{library} refuses the file: {last}", place, hint)]
