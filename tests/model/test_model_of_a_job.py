"""`model:` of a job file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.model.model_config import ModelConfig, parameters
from hpc_launch.prepare.prepare import prepare_job, validate_job
from tests.plan.conftest import folder
from tests.plan.test_strategy_plan import GOOD, SITE

__all__ = ["folder"]

SIZES = "layers: 4, hidden: 64, ffn: 128, heads: 4, vocab: 100"
MEGATRON = "strategy: megatron\nparallel: {tp: 2}\nargs: {num-layers: 4, hidden-size: 64, num-attention-heads: 4"
REST = """vocab-size: 100, seq-length: 512, ffn-hidden-size: 128, swiglu: true, disable-bias-linear: true,
  untie-embeddings-and-output-weights: true, normalization: RMSNorm, position-embedding-type: rope"""


def model_of(folder: Path, more: str) -> ModelConfig | None:
    (folder / "sites" / "here.yaml").write_text(SITE)
    (folder / "job.yaml").write_text(GOOD + more + "\n")
    return prepare_job(folder / "job.yaml").model


@pytest.mark.parametrize(
    ("more", "total", "sequence"),
    [
        ("model: llama3-8b", 8_030_261_248, 8192),
        ("model: {name: llama3-8b, sequence: 4096}", 8_030_261_248, 4096),
        ("model: {name: llama3-8b, layers: 16}", 8_030_261_248 - 16 * 218_112_000, 8192),
        (f"model: {{{SIZES}}}", 2 * 6400 + 64 + 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64), None),
        (f"model: {{{SIZES}, tied: true, gated: false}}", 6400 + 64 + 4 * (4 * 64 * 64 + 2 * 64 * 128 + 2 * 64), None),
        (
            f"model: {{{SIZES}, experts: {{count: 8, per_token: 2, ffn: 16}}}}",
            2 * 6400 + 64 + 4 * (4 * 64 * 64 + 8 * 3 * 64 * 16 + 8 * 64 + 2 * 64),
            None,
        ),
        ("model: ./model.yaml", 100 * 8 + 8 + 2 * (4 * 64 + 3 * 8 * 8 + 16), None),
        (f"{MEGATRON}, {REST}}}", 2 * 6400 + 64 + 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64), 512),
        ("model: llama3-8b\nstrategy: megatron\nparallel: {tp: 2}\nargs: [--seq-length, 2048]", 8_030_261_248, 2048),
    ],
)
def test_the_model_is_read(folder: Path, more: str, total: int, sequence: int | None) -> None:
    options = "swiglu: true, normalization: RMSNorm, disable_bias_linear: true, position_embedding_type: rope"
    sizes = "num_layers: 2, hidden_size: 8, num_attention_heads: 2, vocab_size: 100, ffn_hidden_size: 8"
    (folder / "model.yaml").write_text(f"model: {{{sizes}, {options}}}\n")
    model = model_of(folder, more)
    assert model is not None
    assert parameters(model).total == total
    assert model.sequence == sequence


@pytest.mark.parametrize("more", ["", f"{MEGATRON}}}"])
def test_without_its_sizes_a_model_is_unknown(folder: Path, more: str) -> None:
    """The size of the vocabulary may come from the tokenizer."""
    assert model_of(folder, more) is None


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("model: llama3-9b", "5:8: HL680 hpc-launch knows no model `llama3-9b`"),
        ("model: meta-llama/Llama-3-8B", "5:8: HL001 "),
        ("model: {config: none.json}", "5:17: HL001 "),
        ("model: {config: '${nowhere}/c.json'}", "5:17: HL206 "),
        ("model: {hidden: 64}", "5:8: HL012 `model` does not say `layers`, `heads`, `vocab`, `ffn`"),
        (f"model: {{{SIZES}, query_groups: 3}}", "5:8: HL013 4 heads are not divisible by 3 query groups"),
        (f"model: {{{SIZES}, experts: {{count: 2, per_token: 3, ffn: 1}}}}", "5:8: HL013 each token is sent to 3"),
        ("model: {layers: -1}", "5:17: HL013 `model.layers` must be at least 1"),
        ("model: {layers: 1e30}", "5:17: HL011 "),
        ("model: {name: gpt2, config: x.json}", "5:8: HL013 `model` has both"),
        ("model: llama3-8b\nstrategy: megatron\nparallel: {tp: 2}\nargs: [--num-layers, 30]", "8:8: HL681 Megatron's"),
        ("model: {size: 7}", "5:9: HL010 unknown key `size` in `model`"),
        ("model: {name: llama3-8b, layers: 30}\nstrategy: megatron\nparallel: {pp: 8}", "7:16: HL645 30 layers are"),
        ("model: llama3-8b\nparallel: {tp: 8, cp: 1, pp: 1, ep: 2}", "6:37: HL642 EP = 2, but the model has no"),
    ],
)
def test_a_fault_is_refused_where_it_is(folder: Path, more: str, expected: str) -> None:
    (folder / "sites" / "here.yaml").write_text(SITE)
    (folder / "job.yaml").write_text(GOOD + more + "\n")
    found = [str(finding).removeprefix(f"{folder}/job.yaml:") for finding in validate_job(folder / "job.yaml")]
    assert any(message.startswith(expected) for message in found), found
