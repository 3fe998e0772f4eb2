"""`model:` of a job file: the sizes of the model that is trained."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MOST_LAYERS = 10_000
MOST_EXPERTS = 100_000
LARGEST_SIZE = 100_000_000
"""Limits of any size: above all published models (2026: 10 million tokens, 260,000 entries of a vocabulary)."""

Size = Annotated[int, Meta(ge=1, le=LARGEST_SIZE)]
SizeOrNone = Annotated[int, Meta(ge=0, le=LARGEST_SIZE)]
ExpertCount = Annotated[int, Meta(ge=1, le=MOST_EXPERTS)]


class ModelLatent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of multi-head latent attention (DeepSeek)."""

    query_rank: Size | None = None
    """Width of the compressed queries. Default: they are not compressed."""
    key_value_rank: Size
    """Width of the compressed keys and values."""
    nope_dim: Size
    """Width of a head's queries and keys without positions."""
    rope_dim: Size
    """Width of a head's queries and keys with rotary positions."""
    value_dim: Size
    """Width of a head's values."""


class ModelExperts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mixture of experts."""

    count: ExpertCount
    """Experts per layer, without the shared ones."""
    per_token: ExpertCount
    """Experts that each token is sent to."""
    ffn: Size
    """Inner width of one expert."""
    shared_ffn: SizeOrNone = 0
    """Inner width of all shared experts together."""
    dense_layers: Annotated[int, Meta(ge=0, le=MOST_LAYERS)] = 0
    """Number of first layers that have no experts."""
    every: Annotated[int, Meta(ge=1, le=MOST_LAYERS)] = 1
    """Of the other layers, the last of each so many has experts."""


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model, from which `plan` estimates memory and time. Sizes given here replace those of `name` or `config`.

    Megatron's own arguments under `args:` are the default.
    """

    name: Annotated[str | None, Meta(min_length=1, examples=["llama3-8b"])] = None
    """A model that hpc-launch knows."""
    config: Annotated[str | None, Meta(min_length=1)] = None
    """A Hugging Face `config.json` or the folder that contains it, or a Megatron or FlagScale YAML file, relative
    to the job file."""
    sequence: Size | None = None
    """Tokens per sample in this training. Default: the model's longest sequence."""
    layers: Annotated[int | None, Meta(ge=1, le=MOST_LAYERS)] = None
    """Transformer layers."""
    hidden: Size | None = None
    """Width of the residual stream."""
    ffn: Size | None = None
    """Inner width of a dense layer's MLP."""
    vocab: Size | None = None
    """Entries of the vocabulary."""
    heads: Size | None = None
    """Attention heads."""
    query_groups: Size | None = None
    """Key and value heads of grouped-query attention. Default: one per head."""
    head_dim: Size | None = None
    """Width of a head. Default: `hidden` / `heads`."""
    gated: bool | None = None
    """Whether the MLP has a gate, as in SwiGLU: three matrices. Default: true."""
    tied: bool | None = None
    """Whether the output layer is the embedding. Default: false."""
    biases: bool | None = None
    """Whether linear layers have biases. Default: false."""
    positions: SizeOrNone | None = None
    """Rows of a learned position embedding. Default: 0, rotary positions."""
    latent: ModelLatent | None = None
    """Sizes of multi-head latent attention."""
    experts: ModelExperts | None = None
    """Mixture of experts."""

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`model: llama3-8b`, `model: path/to/config.json`."""
        if not isinstance(value, str):
            return None
        is_path = "/" in value or value.endswith((".json", ".yaml", ".yml"))
        return {"config" if is_path else "name": value}
