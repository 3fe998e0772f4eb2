"""Read the sizes of a model from its Hugging Face `config.json`.

The families are those of transformers 5.23.0, `models/*/configuration_*.py` and `modeling_*.py`. A key that a file
leaves out has the default of its family there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.findings import FindingCode
from hpc_launch.base.installed import read_shipped
from hpc_launch.job.model import MOST_EXPERTS, MOST_LAYERS, ModelLatent
from hpc_launch.model.model_config import Experts, GivenValues, ModelConfig, ValueReader


class _Family(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the sizes of a family's configuration do not say."""

    gated: bool = True
    tied: bool = False
    """Unless `tie_word_embeddings` says otherwise."""
    qkv_bias: bool | None = None
    """None: if `attention_bias` says so."""
    biases: bool = False
    norm_bias: bool = False
    head_norms: bool = False
    head_dim: int | None = None
    """Unless `head_dim` says otherwise; None: hidden size / heads."""
    latent: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    learned_positions: bool = False
    experts: bool = False


FAMILIES: Mapping[str, _Family] = read_shipped(Path(__file__).with_name("families.yaml"), dict[str, _Family])
"""By `model_type`: the families whose sizes determine their parameters."""

_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_FFN = ("intermediate_size", "n_inner", "ffn_dim")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_POSITIONS = ("max_position_embeddings", "n_positions")


def from_transformers(given: GivenValues) -> tuple[ModelConfig, ValueReader]:
    """The model of a configuration of one of the families, to be used only if the reader has no findings."""
    reader = ValueReader(given)
    known = FAMILIES[given.values["model_type"]]
    hidden, heads = reader.size(*_HIDDEN), reader.size(*_HEADS)
    attention_bias = known.qkv_bias is None and reader.flag("attention_bias", default=False)
    longest = reader.size(*_POSITIONS, default=0, least=0)
    latent = _latent(reader) if known.latent else None
    model = ModelConfig(
        name=str(given.values.get("model_type", "")),
        layers=reader.size(*_LAYERS, most=MOST_LAYERS),
        hidden=hidden,
        ffn=reader.size(*_FFN, default=None if known.gated else 4 * hidden),
        vocab=reader.size("vocab_size"),
        heads=heads,
        query_groups=heads if latent else reader.size("num_key_value_heads", default=heads),
        head_dim=latent.nope_dim + latent.rope_dim if latent else _head_dim(reader, known, hidden, heads),
        gated=known.gated,
        tied=reader.flag("tie_word_embeddings", default=known.tied),
        latent=latent,
        positions=longest if known.learned_positions else 0,
        qkv_bias=attention_bias if known.qkv_bias is None else known.qkv_bias,
        biases=known.biases or (attention_bias and reader.flag("mlp_bias", default=False)),
        norm_bias=known.norm_bias,
        head_norms=known.head_norms,
        next_token_layers=reader.size("num_nextn_predict_layers", default=0, least=0),
        sequence=longest or None,
    )
    if known.experts and reader.name_of(*_EXPERTS):
        model = replace(model, experts=_experts(reader, known, model))
    return model, reader


def _head_dim(reader: ValueReader, known: _Family, hidden: int, heads: int) -> int:
    if not reader.findings and reader.name_of("head_dim") is None and known.head_dim is None and hidden % heads:
        message = f"`{_HIDDEN[0]}` = {hidden} is not divisible by {heads} heads"
        hint = "correct the numbers, or add `head_dim`"
        reader.report(FindingCode.INVALID_VALUE, message, reader.name_of(*_HEADS), hint)
    return reader.size("head_dim", default=known.head_dim or max(hidden // heads, 1))


def _latent(reader: ValueReader) -> ModelLatent:
    return ModelLatent(
        query_rank=reader.size("q_lora_rank", default=0, least=0) or None,
        key_value_rank=reader.size("kv_lora_rank"),
        nope_dim=reader.size("qk_nope_head_dim"),
        rope_dim=reader.size("qk_rope_head_dim"),
        value_dim=reader.size("v_head_dim"),
    )


def _experts(reader: ValueReader, known: _Family, model: ModelConfig) -> Experts:
    width = reader.size("moe_intermediate_size", default=model.ffn)
    shared = reader.size("n_shared_experts", default=0, least=0) * width
    every = reader.size("decoder_sparse_step", default=1)
    excluded = _excluded(reader, model.layers)
    return Experts(
        count=reader.size(*_EXPERTS, most=MOST_EXPERTS),
        per_token=reader.size("num_experts_per_tok", default=2, most=MOST_EXPERTS),
        ffn=width,
        shared_ffn=reader.size("shared_expert_intermediate_size", default=shared, least=0),
        shared_gate=known.shared_gate,
        dense_layers=reader.size("first_k_dense_replace", default=0, least=0),
        every=every,
        layers=tuple(at for at in range(model.layers) if at not in excluded and (at + 1) % every == 0)
        if excluded
        else None,
        router_bias=known.router_bias,
    )


def _excluded(reader: ValueReader, layers: int) -> frozenset[int]:
    """Layers that Qwen excludes from the mixture by their number."""
    value = reader.given.values.get("mlp_only_layers") or []
    if isinstance(value, list) and all(isinstance(index, int) and 0 <= index < layers for index in value):
        return frozenset(value)
    message = f"`mlp_only_layers` must be a list of numbers between 0 and {layers - 1}"
    reader.report(FindingCode.INVALID_VALUE, message, "mlp_only_layers", "correct the list")
    return frozenset()
