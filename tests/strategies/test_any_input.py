"""Whatever a file holds, a check ends with findings and not with an error of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.plan.strategies import config_file, deepspeed_file, fsdp_file
from hpc_launch.plan.strategies.fsdp_file import Reader
from tests.strategies.conftest import Config

FSDP = ["version", "reshard_after_forward", "transformer_layer_cls_to_wrap", "min_num_params", "cpu_offload"]
FSDP += ["state_dict_type", "sharding_strategy", "auto_wrap_policy", "activation_checkpointing", "cuda_graphs"]
LISTED = {"": ("a", "version"), "fsdp_config": ("fsdp_version",), "zero_optimization": ("stage",)}
KNOWN = [
    *(key for name in deepspeed_file.FIELDS for key in name.split(".")),
    *("elasticity", "bfloat16", "cpu_offload", "fsdp_config", "distributed_type", "params"),
    *FSDP,
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 10**20)
    | st.floats()
    | st.sampled_from(["auto", "cpu", "nvme", "true", "FULL_SHARD", "2", ""])
    | st.text(max_size=5)
)
KEYS = st.sampled_from(KNOWN) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)


@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_any_mapping(data: dict[str, Any]) -> None:
    located, findings = config_file.parse(json.dumps(data), "f", is_yaml=False)
    if located is None:
        assert findings
        return
    everything = deepspeed_file.check(located, replicas=4, keys=LISTED)
    readers: tuple[Reader, ...] = ("accelerate", "trainer")
    for reader in readers:
        everything += fsdp_file.check(located, reader=reader) + fsdp_file.check(located, reader=reader, keys=LISTED)
    assert all(found.code.startswith("HL6") and found.place and len(found.message) < 2000 for found in everything)


@given(st.text(max_size=60))
def test_any_text(content: str) -> None:
    for is_yaml in (False, True):
        located, findings = config_file.parse(content, "f", is_yaml=is_yaml)
        assert (located is None) == bool(findings)


@pytest.mark.parametrize(
    "content",
    [
        "a: &a {x: 1}\nb: *a\n",
        "a: &a\n  b: *a\n",
        "? {a: 1}\n: 2\n",
        "a: !!python/object/apply:os.system [ls]\n",
        "[" * 5000,
        "a: \x07\n",
        "--- \n...\n--- {}\n",
        "a: [\n",
        "",
        " " * 300_000,
    ],
)
def test_yaml_that_is_not_followed(content: str, config: Config) -> None:
    Path("a.yaml").write_text(content)
    done = config("fsdp", "--check", "a.yaml")
    assert (done.code, done.codes) == (3, {"HL600"}), done
