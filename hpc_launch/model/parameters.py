"""How many parameters a model has, from its sizes."""

from __future__ import annotations

from functools import lru_cache

from hpc_launch.model.model_config import Experts, LatentAttention, LayerParameters, ModelConfig, ModelParameters


@lru_cache(maxsize=64)
def parameters(model: ModelConfig) -> ModelParameters:
    """Parameters of the whole model, before it is divided; those counted in the model itself, if there are any."""
    if model.counted is not None:
        return model.counted
    kinds = {experts: _layer(model, experts=experts) for experts in (False, model.experts is not None)}
    return ModelParameters(
        embedding=(model.vocab + model.positions) * model.hidden,
        output=0 if model.tied else model.vocab * model.hidden,
        final_norm=_norm(model),
        layers=tuple(kinds[model.has_experts(index)] for index in range(model.layers)),
        next_token=_next_token(model),
    )


def active_parameters(model: ModelConfig) -> int:
    """Parameters that take part in the computation of one token: of the experts, those that it is sent to.

    With the embedding and the output layer, as in the "A22B" of Qwen3-235B-A22B.
    """
    counts = parameters(model)
    if model.experts is None:
        return counts.total
    return counts.total - counts.experts + counts.experts * model.experts.per_token // model.experts.count


def _layer(model: ModelConfig, *, experts: bool) -> LayerParameters:
    attention, latent, inner_norms = (
        _attention(model) if model.latent is None else _latent_attention(model, model.latent)
    )
    norms = 2 * _norm(model) + inner_norms
    mixture = model.experts
    if mixture is None or not experts:
        return LayerParameters(attention=attention, latent=latent, mlp=_mlp(model, model.ffn), norms=norms)
    return LayerParameters(
        attention=attention,
        latent=latent,
        experts=mixture.count * _mlp(model, mixture.ffn),
        shared_experts=_mlp(model, mixture.shared_ffn) if mixture.shared_ffn else 0,
        router=_router(model, mixture),
        norms=norms,
    )


def _attention(model: ModelConfig) -> tuple[int, int, int]:
    """Parameters that tensor parallelism divides, those it does not, and norms."""
    queries, keys = model.heads * model.head_dim, 2 * model.query_groups * model.head_dim
    matrices = model.hidden * (queries + keys) + queries * model.hidden
    biases = (queries + keys if model.qkv_bias else 0) + (model.hidden if model.biases else 0)
    return matrices + biases, 0, 2 * model.head_dim if model.head_norms else 0


def _latent_attention(model: ModelConfig, latent: LatentAttention) -> tuple[int, int, int]:
    query = latent.nope_dim + latent.rope_dim
    down = model.hidden * (latent.key_value_rank + latent.rope_dim)
    up = model.heads * latent.key_value_rank * (latent.nope_dim + latent.value_dim)
    if latent.query_rank is None:
        up += model.hidden * model.heads * query
    else:
        down += model.hidden * latent.query_rank
        up += latent.query_rank * model.heads * query
    output = model.heads * latent.value_dim * model.hidden
    return up + output, down, latent.key_value_rank + (latent.query_rank or 0)


def _mlp(model: ModelConfig, width: int) -> int:
    inputs = 2 if model.gated else 1
    biases = inputs * width + model.hidden if model.biases else 0
    return (inputs + 1) * model.hidden * width + biases


def _router(model: ModelConfig, experts: Experts) -> int:
    return (
        model.hidden * experts.count
        + (experts.count if experts.router_bias else 0)
        + (model.hidden if experts.shared_gate else 0)
    )


def _norm(model: ModelConfig) -> int:
    return model.hidden * (2 if model.norm_bias else 1)


def _next_token(model: ModelConfig) -> int:
    """Each of these layers joins two normalized inputs of the hidden width and has a norm of its own before the output.

    The embedding and the output layer are the model's (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    each = _layer(model, experts=model.experts is not None).total + 2 * model.hidden**2 + 3 * _norm(model)
    return model.next_token_layers * each
