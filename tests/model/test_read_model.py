"""Models from files: what is read, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.model.model_config import ModelConfig, parameters
from hpc_launch.model.read_model import known_model, model_from_file

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
}

# The sizes of FlagAI-Open/OpenSeek, configs/OpenSeek-Small-v1-Baseline/train/train_deepseek_v3_1_4b.yaml (3518fad5).
OPENSEEK = """\
system:
  no_shared_fs: ${experiment.runner.no_shared_fs}
  disable_bias_linear: true
  qk_layernorm: true
  checkpoint:
    load: ${experiment.load}
model:
  num_layers: 6
  hidden_size: 1280
  num_attention_heads: 10
  group_query_attention: false
  num_query_groups: 10
  seq_length: 4096
  max_position_embeddings: 4096
  swiglu: true
  normalization: RMSNorm
  position_embedding_type: rope
  untie_embeddings_and_output_weights: false
  multi_latent_attention: true
  kv_lora_rank: 512
  qk_head_dim: 128
  qk_pos_emb_head_dim: 64
  v_head_dim: 128
  ffn_hidden_size: 7168
  moe_ffn_hidden_size: 896
  moe_shared_expert_intermediate_size: 1792
  num_experts: 64
  moe_layer_freq: "[0]+[1]*5"
  moe_router_topk: 6
  optimizer:
    lr_scheduler: {lr: 3.0e-3}
data:
  tokenizer:
    vocab_size: 151851
"""


def read(folder: Path, name: str, text: str) -> ModelConfig:
    (folder / name).write_text(text)
    model, findings = model_from_file(str(folder / name))
    assert not findings
    assert model is not None
    return model


def refused(folder: Path, name: str, text: str) -> list[str]:
    """Each finding without the folder; all have a hint."""
    (folder / name).write_text(text)
    model, findings = model_from_file(str(folder / name))
    assert model is None
    assert all(found.hint for found in findings)
    return [str(found).removeprefix(f"{folder}/") for found in findings]


def test_a_config_of_hugging_face_is_found_in_its_folder(tmp_path: Path) -> None:
    known, _ = known_model("llama3-8b", None)
    assert known is not None
    model = read(tmp_path, "config.json", json.dumps(LLAMA))
    assert parameters(model) == parameters(known)
    assert model.sequence == 8192
    assert model_from_file(str(tmp_path)) == (model, [])


def test_the_configuration_of_openseek(tmp_path: Path) -> None:
    model = read(tmp_path, "train.yaml", OPENSEEK)
    assert model.experts is not None
    assert model.experts.layers == (1, 2, 3, 4, 5)
    assert (model.tied, model.gated, model.norm_bias, model.vocab, model.sequence) == (True, True, False, 151851, 4096)
    counts = parameters(model)
    attention = 10 * (1280 * 192 + 512 * (128 + 128) + 128 * 1280)
    assert counts.layers[0].total == attention + 1280 * 576 + 512 + 3 * 1280 * 7168 + 2 * 1280
    assert counts.layers[1].experts == 64 * 3 * 1280 * 896
    # The 1.4 billion of the file's name, and with the twelve layers in its comments the 3 billion of OpenSeek-Small-v1.
    assert counts.total == pytest.approx(1.4e9, rel=0.05)
    whole = OPENSEEK.replace("num_layers: 6", "num_layers: 12").replace("[1]*5", "[1]*11")
    assert parameters(read(tmp_path, "whole.yaml", whole)).total == pytest.approx(2.8e9, rel=0.05)


def test_defaults_of_megatron(tmp_path: Path) -> None:
    """GPT-3's shape: biases, LayerNorm, learned positions, a tied output layer, and four times the hidden size."""
    sizes = {"num_layers": 96, "hidden_size": 12288, "num_attention_heads": 96, "padded_vocab_size": 50257}
    model = read(tmp_path, "gpt.yaml", json.dumps(sizes | {"max_position_embeddings": 2048}))
    known, _ = known_model("gpt3-175b", None)
    assert known is not None
    assert parameters(model) == parameters(known)


def test_the_inner_width_that_flagscale_derives(tmp_path: Path) -> None:
    """FlagOpen/FlagScale, examples/aquila/conf/train/70b.yaml: the sizes of Llama 2 70B."""
    sizes = {"num_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_query_groups": 8, "vocab_size": 9}
    derived = {"swiglu": True, "multiple_of": 4096, "hidden_dim_multiplier": 1.3}
    assert read(tmp_path, "70b.yaml", json.dumps(sizes | derived)).ffn == 28672
    assert read(tmp_path, "70b.yaml", json.dumps(sizes | {"swiglu": True})).ffn == 21824


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("'([0]*1+[1]*3)'", (1, 2, 3)),
        ("([1]*1+[0]*1)*2", (0, 2)),
        ([0, 0, 0, 1], (3,)),
        (2, (0, 2)),
        (1, None),
    ],
)
def test_which_layers_have_experts(tmp_path: Path, pattern: Any, layers: tuple[int, ...] | None) -> None:
    sizes = {"num_layers": 4, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9, "num_experts": 4}
    experts = read(tmp_path, "moe.yaml", json.dumps(sizes | {"moe_layer_freq": pattern})).experts
    assert experts is not None
    assert experts.layers == layers


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hidden_size": None}, "1:1: HL012 `hidden_size` is missing"),
        ({"intermediate_size": "14336x"}, "7:23: HL011 `intermediate_size` must be a whole number, not the text"),
        ({"num_hidden_layers": 10**9}, "8:23: HL013 `num_hidden_layers` must be between 1 and 10000"),
        ({"vocab_size": -1}, "11:16: HL013 `vocab_size` must be between 1 and 100000000, not -1"),
        ({"hidden_size": 10**30}, "6:17: HL013 `hidden_size` must be between 1 and 100000000, not a number with"),
        ({"hidden_size": float("nan")}, "6:17: HL011 `hidden_size` must be a whole number, not the text 'NaN'"),
        ({"num_attention_heads": 3}, "9:25: HL013 `hidden_size` = 4096 is not divisible by 3 heads"),
        ({"num_key_value_heads": 5}, "10:25: HL013 32 heads are not divisible by 5 query groups"),
        (
            {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 8},
            "16:25: HL013 each token is sent to 8",
        ),
        ({"tie_word_embeddings": "maybe"}, "15:25: HL011 `tie_word_embeddings` must be true or false"),
        ({"model_type": 5}, "5:16: HL012 `model_type` is missing"),
        ({"model_type": "olmo2"}, "5:16: HL680 the architecture `olmo2` is not known"),
        (
            {"hidden_size": 10**8, "intermediate_size": 10**8, "num_hidden_layers": 10_000},
            "1:1: HL013 the model would have 6e+20 parameters",
        ),
    ],
)
def test_a_config_with_a_fault_is_refused_where_it_is(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    found = refused(tmp_path, "config.json", json.dumps(LLAMA | change, indent=1))
    assert len(found) == 1
    assert found[0].startswith(f"config.json:{expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not json", "config.json:1:1: HL005 the file contains text instead of keys"),
        ("", "config.json:1:1: HL005 the file is empty"),
        ('{"model_type": "llama"', "config.json:2:1: HL002 invalid YAML"),
        ("x" * (5 << 20), "config.json: HL001 the file is larger than 4 MiB"),
        ("model: {hidden_size: 4}", "config.json: HL012 this is neither a config.json of Transformers nor a Megatron"),
        ("[" * 100_000, "config.json:1:"),
    ],
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    found = refused(tmp_path, "config.json", text)
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    "pattern", ["[0]*10**9", "[1]*99999999", "__import__('os')", "[2]*4", "[0]+", "(" * 9999, "[1]*3", "[1]*-1", -1]
)
def test_a_pattern_is_never_evaluated_as_code(tmp_path: Path, pattern: object) -> None:
    sizes = {"num_layers": 4, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9, "num_experts": 4}
    found = refused(tmp_path, "moe.yaml", json.dumps(sizes | {"moe_layer_freq": pattern}))
    assert [message.partition(" ")[2][:25] for message in found] == ["HL013 `moe_layer_freq` mu"]


def test_a_missing_file_says_that_nothing_is_downloaded(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        model, (found,) = model_from_file(str(path))
        assert model is None
        assert "does not download" in (found.hint or "")
