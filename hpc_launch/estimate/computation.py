"""Floating-point operations and memory traffic of one transformer layer, per token."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from hpc_launch.model.model_config import ModelConfig
from hpc_launch.model.parameters import parameters

BYTES = 2
"""Of an activation or a weight in bf16."""


class LayerWork(Struct, frozen=True, kw_only=True):
    """The forward pass of an average layer, per token. The backward pass takes twice the operations."""

    matrices: float
    """Operations of the weight matrices that this token meets: two for each weight."""
    attention: float
    """Operations of the attention itself, per token of context; half of it with a causal mask."""
    width: float
    """Mean width of the matrices' inner dimension, before tensor parallelism divides it."""
    dense_weights: float
    """Weights outside experts."""
    expert_weights: float
    key_value_width: float
    """Keys and values of a token, in elements."""
    routed: float
    """Copies of a token that go to experts."""


@lru_cache(maxsize=64)
def layer_work(model: ModelConfig) -> LayerWork:
    """The average over the model's layers."""
    counts = parameters(model)
    dense = sum(layer.outside_experts for layer in counts.layers) / model.layers
    experts = counts.experts / model.layers
    mixture, latent = model.experts, model.latent
    routed = mixture.per_token if mixture is not None else 0
    active = experts * routed / mixture.count if mixture is not None else 0.0
    if latent is None:
        attention = 2.0 * model.heads * model.head_dim
        keys = 2.0 * model.query_groups * model.head_dim
    else:
        attention = model.heads * (latent.nope_dim + latent.rope_dim + latent.value_dim)
        keys = float(latent.key_value_rank + latent.rope_dim)
    share = sum(layer.experts > 0 for layer in counts.layers) / model.layers
    inner = mixture.ffn if mixture is not None and share > 0.5 else model.ffn
    return LayerWork(
        matrices=2 * (dense + active),
        attention=2 * attention,
        width=min(inner, model.heads * model.head_dim),
        dense_weights=dense,
        expert_weights=experts,
        key_value_width=keys,
        routed=routed * share,
    )


def model_flops(model: ModelConfig, sequence: int) -> float:
    """Operations per token that the training needs, without recomputation: forward and backward, causal attention.

    As PaLM counts them (arXiv 2204.02311, appendix B), but with half of the attention matrix.
    """
    work = layer_work(model)
    return 3 * (model.layers * (work.matrices + work.attention * sequence / 2) + 2.0 * model.hidden * model.vocab)
