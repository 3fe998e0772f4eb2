"""The environment that we give an `Accelerator()`, against what `accelerate launch` itself sets for the same file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hpc_launch.base.findings import Place
from hpc_launch.plan.strategies.fsdp_file import Fsdp, accelerate_data, for_fsdp, make

pytestmark = pytest.mark.torch("accelerate")

ASK = """
import json, os, sys
path = os.environ["PATH"]
os.environ = {"PATH": path}
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
for file in sys.argv[1:]:
    os.environ = {"PATH": path}
    args = launch_command_parser().parse_args(["--config_file", file, "--num_processes", "2", "train.py"])
    _validate_launch_command(args)
    told = prepare_multi_gpu_env(args)
    told = {k: v for k, v in told.items() if k.startswith(("FSDP_", "ACCELERATE_")) and "DYNAMO" not in k}
    print(json.dumps(told))
"""

OWN = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n"


ASKED = (
    Fsdp(wrap_class=["Block", "Head"], offload=True),
    Fsdp(version=1, sharding_strategy="SHARD_GRAD_OP", mixed_precision="fp16"),
    Fsdp(version=1, wrap_policy="SIZE_BASED_WRAP", min_params=1000, mixed_precision="no"),
)
FILES = [
    *(str(make(asked, Place)[0]) for asked in ASKED),
    OWN,
    OWN.replace("false", "true") + "  fsdp_activation_checkpointing: true\n",
]


def test_it_is_what_accelerate_launch_would_set(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.yaml" for number in range(len(FILES))]
    for path, text in zip(paths, FILES, strict=True):
        path.write_text(text)
    done = subprocess.run([sys.executable, "-c", ASK, *map(str, paths)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()[-len(FILES) :]
    for text, theirs in zip(FILES, map(json.loads, lines), strict=True):
        # Accelerate writes its default as 1e8, which its own reader of the variable takes for no number.
        if theirs["FSDP_MIN_NUM_PARAMS"] == "1e8":
            theirs["FSDP_MIN_NUM_PARAMS"] = "100000000"
        assert for_fsdp(yaml.safe_load(text)) == theirs


PLUGIN = """
from accelerate.utils import FullyShardedDataParallelPlugin
plugin = FullyShardedDataParallelPlugin()
print(plugin.fsdp_version, plugin.reshard_after_forward, plugin.state_dict_type.name, plugin.min_num_params)
"""


@pytest.mark.prove
def test_accelerates_own_reader_takes_it_as_it_was_meant() -> None:
    asked = Fsdp(
        sharding_strategy="SHARD_GRAD_OP", wrap_policy="SIZE_BASED_WRAP", min_params=1000, state_dict="FULL_STATE_DICT"
    )
    environment = {"PATH": os.environ["PATH"], **for_fsdp(accelerate_data(asked))}
    done = subprocess.run([sys.executable, "-c", PLUGIN], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["2", "False", "FULL_STATE_DICT", "1000"]
