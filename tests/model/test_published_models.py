"""The numbers of parameters of published models, each with its source."""

from __future__ import annotations

import pytest

from hpc_launch.model.model_config import GivenValues, active_parameters, parameters
from hpc_launch.model.read_model import FAMILIES, from_transformers, known_model, known_models

# Hugging Face shows the number of stored values of each repository beside its files (safetensors), where a tied output
# layer may be stored twice; those here count it once.
_PUBLISHED = {
    "gpt2": (124_439_808, "huggingface.co/openai-community/gpt2, without the stored attention masks"),
    "gpt2-xl": (1_557_611_200, "huggingface.co/openai-community/gpt2-xl, without the stored attention masks"),
    "gpt3-175b": (174_600_000_000, "arXiv 2005.14165, appendix D, table D.1: 174,600 million"),
    "llama2-7b": (6_738_415_616, "huggingface.co/meta-llama/Llama-2-7b-hf"),
    "llama2-13b": (13_015_864_320, "huggingface.co/meta-llama/Llama-2-13b-hf"),
    "llama2-70b": (68_976_648_192, "huggingface.co/meta-llama/Llama-2-70b-hf"),
    "llama3-8b": (8_030_261_248, "huggingface.co/meta-llama/Meta-Llama-3-8B"),
    "llama3-70b": (70_553_706_496, "huggingface.co/meta-llama/Meta-Llama-3-70B"),
    "llama3-405b": (405_853_388_800, "huggingface.co/meta-llama/Llama-3.1-405B"),
    "llama3.2-1b": (1_235_814_400, "huggingface.co/meta-llama/Llama-3.2-1B"),
    "llama3.2-3b": (3_212_749_824, "huggingface.co/meta-llama/Llama-3.2-3B"),
    "mistral-7b": (7_241_732_096, "huggingface.co/mistralai/Mistral-7B-v0.1"),
    "mixtral-8x7b": (46_702_792_704, "huggingface.co/mistralai/Mixtral-8x7B-v0.1"),
    "mixtral-8x22b": (140_620_634_112, "huggingface.co/mistralai/Mixtral-8x22B-v0.1"),
    "qwen2.5-7b": (7_615_616_512, "huggingface.co/Qwen/Qwen2.5-7B"),
    "qwen2.5-72b": (72_706_203_648, "huggingface.co/Qwen/Qwen2.5-72B"),
    "qwen3-0.6b": (596_049_920, "huggingface.co/Qwen/Qwen3-0.6B, less the second copy of 151936 × 1024"),
    "qwen3-1.7b": (1_720_574_976, "huggingface.co/Qwen/Qwen3-1.7B, less the second copy of 151936 × 2048"),
    "qwen3-4b": (4_022_468_096, "huggingface.co/Qwen/Qwen3-4B"),
    "qwen3-8b": (8_190_735_360, "huggingface.co/Qwen/Qwen3-8B"),
    "qwen3-14b": (14_768_307_200, "huggingface.co/Qwen/Qwen3-14B"),
    "qwen3-32b": (32_762_123_264, "huggingface.co/Qwen/Qwen3-32B"),
    "qwen3-30b-a3b": (30_532_122_624, "huggingface.co/Qwen/Qwen3-30B-A3B"),
    "qwen3-235b-a22b": (235_093_634_560, "huggingface.co/Qwen/Qwen3-235B-A22B"),
    "deepseek-v2-lite": (15_706_484_224, "huggingface.co/deepseek-ai/DeepSeek-V2-Lite"),
    "deepseek-v2": (236_000_000_000, "arXiv 2405.04434, abstract: 236B"),
    "deepseek-v3": (671_000_000_000, "arXiv 2412.19437, abstract: 671B, without multi-token prediction"),
}

# With the embedding and the output layer. DeepSeek-V2-Lite's "2.4B" leaves out the embedding: 2.66B - 0.21B.
_ACTIVE = {
    "mixtral-8x7b": (12.9e9, "mistral.ai/news/mixtral-of-experts: 12.9B"),
    "mixtral-8x22b": (39e9, "mistral.ai/news/mixtral-8x22b: 39B"),
    "qwen3-30b-a3b": (3.3e9, "huggingface.co/Qwen/Qwen3-30B-A3B: 3.3B activated"),
    "qwen3-235b-a22b": (22e9, "huggingface.co/Qwen/Qwen3-235B-A22B: 22B activated"),
    "deepseek-v2": (21e9, "arXiv 2405.04434, abstract: 21B activated"),
    "deepseek-v3": (37e9, "arXiv 2412.19437, abstract: 37B activated"),
}


def test_every_known_model_has_a_published_number() -> None:
    assert set(known_models()) == set(_PUBLISHED)


@pytest.mark.parametrize("name", _PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    model, findings = known_model(name, None)
    assert not findings
    assert model is not None
    published, _ = _PUBLISHED[name]
    exact = published % 1_000_000 != 0
    assert parameters(model).total == (published if exact else pytest.approx(published, rel=0.01))


@pytest.mark.parametrize("name", _ACTIVE)
def test_active_parameters_are_those_published(name: str) -> None:
    model, _ = known_model(name, None)
    assert model is not None
    assert active_parameters(model) == pytest.approx(_ACTIVE[name][0], rel=0.025)


def test_multi_token_prediction_is_counted_apart() -> None:
    """DeepSeek-V3's README_WEIGHTS.md: 11.5B unique parameters in the module for multi-token prediction."""
    model, _ = known_model("deepseek-v3", None)
    assert model is not None
    assert parameters(model).next_token == pytest.approx(11.5e9, rel=0.01)


@pytest.mark.torch("transformers")
@pytest.mark.prove
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "kimi_k2"])
def test_the_table_agrees_with_transformers(family: str) -> None:
    """Each family with its default sizes, built on the meta device. Kimi K2's code comes with its files."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    model, reader = from_transformers(GivenValues(config.to_dict(), {}, None))
    assert not reader.findings
    correction = sum(bias.numel() for name, bias in built.named_buffers() if name.endswith("e_score_correction_bias"))
    assert parameters(model).total == sum(parameter.numel() for parameter in built.parameters()) + correction
