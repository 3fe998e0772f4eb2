"""FSDP files: each rule with a bad input, for both readers and both generations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.base.findings import Place
from hpc_launch.plan.strategies.config_file import parse
from hpc_launch.plan.strategies.fsdp_file import Fsdp, check, make
from tests.strategies.conftest import Config, ask


def trainer(data: dict[str, Any]) -> list[tuple[str, str]]:
    located, findings = parse(json.dumps(data), "f", is_yaml=False)
    assert located is not None, findings
    return [(found.code, found.hint or "") for found in check(located)]


def accelerate(fsdp: str, head: str = "distributed_type: FSDP\n") -> list[tuple[str, str]]:
    located, findings = parse(f"{head}fsdp_config:\n  {fsdp}\n", "f", is_yaml=True)
    assert located is not None, findings
    return [(found.code, str(found.place)) for found in check(located, reader="accelerate")]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--sharding-strategy NO_SHARD", "HL627"),
        ("--wrap-class Layer --wrap-policy NO_WRAP", "HL623"),
        ("--wrap-class A,B", "HL623"),
        ("--nodes 2 --world-size 7", "HL610"),
    ],
)
def test_a_request_that_does_not_hold_together_is_refused(config: Config, options: str, code: str) -> None:
    done = config("fsdp", *options.split(), "-o", "fsdp.yaml")
    assert (done.code, done.out, done.codes) == (3, "", {code})
    assert not Path("fsdp.yaml").exists()


@pytest.mark.parametrize("word", ["BFLOAT16", "bfloat16", "bf16", "BF16"])
def test_the_old_words_for_a_number_format_go(config: Config, word: str) -> None:
    assert "mixed_precision: bf16" in config("fsdp", "--mixed_precision", word).out


@pytest.mark.parametrize("options", ["--mixed-precision int8", "--version 3", "--sharding-strategy HALF", "--for me"])
def test_an_option_that_is_none_is_a_usage_error(config: Config, options: str) -> None:
    assert config("fsdp", *options.split()).code == 2


@pytest.mark.parametrize(
    ("data", "code", "hint"),
    [
        ({"version": 3}, "HL604", ""),
        ({"min_num_params": 1e8}, "HL604", "all digits"),
        ({"min_num_params": "1e8"}, "HL604", "all digits"),
        ({"cpu_offload": "maybe"}, "HL604", ""),
        ({"state_dict_type": "FULL"}, "HL604", "FULL_STATE_DICT"),
        ({"auto_wrap_policy": 3}, "HL604", ""),
    ],
)
def test_each_rule_of_the_trainers_file(data: dict[str, Any], code: str, hint: str) -> None:
    assert [(found, hint in told) for found, told in trainer(data)] == [(code, True)]


@pytest.mark.parametrize(
    "fsdp",
    [
        "fsdp_use_orig_params: 3",
        "fsdp_transformer_layer_cls_to_wrap: [LlamaDecoderLayer]",
        "fsdp_min_num_params: 1e8",
        "fsdp_sharding_strategy: ALL",
    ],
)
def test_each_rule_of_accelerates_file(fsdp: str) -> None:
    assert ("HL604", "f:3:3") in accelerate(fsdp)


@pytest.mark.parametrize("head", ["num_processes: 4\n", "distributed_type: FSDP\nmixed_precision: BFLOAT16\n"])
def test_the_top_of_accelerates_file(head: str) -> None:
    assert "HL604" in {found for found, _ in accelerate("fsdp_version: 2", head)}


def test_the_names_that_an_installed_library_reads() -> None:
    listed = {"": ("distributed_type", "fsdp_config"), "fsdp_config": ("fsdp_version", "fsdp_offload_params")}
    text = "distributed_type: FSDP\nnum_process: 4\nfsdp_config: {fsdp_offload_param: true, offload_params: true}\n"
    located, _ = parse(text, "f", is_yaml=True)
    assert located is not None
    found = [(one.code, one.hint) for one in check(located, keys=listed)]
    assert found == [
        ("HL601", "known keys: distributed_type, fsdp_config"),
        ("HL601", "did you mean `fsdp_offload_params`?"),
    ]


def test_a_file_for_accelerate_without_its_mapping() -> None:
    assert "HL604" in {found for found, _ in accelerate("", "distributed_type: FSDP\n")}


@given(
    st.builds(
        Fsdp,
        sharding_strategy=st.sampled_from(
            ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
        ),
        mixed_precision=st.sampled_from(["bf16", "fp16", "no"]),
        version=st.sampled_from([1, 2]),
        reader=st.sampled_from(["accelerate", "trainer"]),
        wrap_policy=st.sampled_from(["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"]),
        wrap_class=st.sampled_from([[], ["Layer"]]),
        state_dict=st.sampled_from(["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"]),
        offload=st.booleans(),
        world_size=st.none() | st.integers(1, 8),
    )
)
def test_whatever_is_written_passes_our_own_check(asked: Fsdp) -> None:
    text, findings = make(asked, Place)
    assert (text is None) == any(finding.severity == "error" for finding in findings)
    if text is not None:
        located, faults = parse(text, "f", is_yaml=asked.reader == "accelerate")
        assert located is not None, faults
        assert check(located) == []


IGNORED = """
import json
from accelerate.utils import FullyShardedDataParallelPlugin
plugin = FullyShardedDataParallelPlugin(fsdp_version=1, reshard_after_forward="shard_grad_op")
print(json.dumps((plugin.sharding_strategy or plugin.reshard_after_forward).name))
"""


@pytest.mark.prove
@pytest.mark.torch("accelerate")
def test_accelerate_prefers_the_strategy_to_what_the_trainers_file_says() -> None:
    """What HL628 warns of: asked for SHARD_GRAD_OP, and trained with FULL_SHARD (accelerator.py, prepare_model)."""
    assert ask(IGNORED, None) == "FULL_SHARD"


@pytest.mark.torch("transformers", "accelerate")
def test_the_trainer_lists_its_keys(tmp_path: Path, config: Config) -> None:
    (tmp_path / "f.json").write_text('{"auto_wrap_polcy": "NO_WRAP", "cpu_offload": true}')
    done = config("fsdp", "--check", "f.json", library=True)
    assert (done.code, done.codes) == (3, {"HL601"})
    assert "did you mean `auto_wrap_policy`?" in done.out


@pytest.mark.prove
@pytest.mark.torch("accelerate")
def test_accelerate_takes_what_is_written(config: Config) -> None:
    assert config("fsdp", "--world-size", "4", library=True).code == 0


@pytest.mark.torch("accelerate")
def test_accelerate_has_the_last_word(tmp_path: Path, config: Config) -> None:
    (tmp_path / "a.yaml").write_text("distributed_type: FSDP\ngpu_ids: 0\nfsdp_config:\n  fsdp_version: 2\n")
    done = config("fsdp", "--check", "a.yaml", library=True)
    assert (done.code, done.codes) == (3, {"HL629"})
