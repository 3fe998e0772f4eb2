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

    query_rank: Annotated[
        Size | None, Meta(description="Width of the compressed queries. Default: they are not compressed.")
    ] = None
    key_value_rank: Annotated[Size, Meta(description="Width of the compressed keys and values.")]
    nope_dim: Annotated[Size, Meta(description="Width of a head's queries and keys without positions.")]
    rope_dim: Annotated[Size, Meta(description="Width of a head's queries and keys with rotary positions.")]
    value_dim: Annotated[Size, Meta(description="Width of a head's values.")]


class ModelExperts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mixture of experts."""

    count: Annotated[ExpertCount, Meta(description="Experts per layer, without the shared ones.")]
    per_token: Annotated[ExpertCount, Meta(description="Experts that each token is sent to.")]
    ffn: Annotated[Size, Meta(description="Inner width of one expert.")]
    shared_ffn: Annotated[SizeOrNone, Meta(description="Inner width of all shared experts together.")] = 0
    dense_layers: Annotated[
        int, Meta(description="Number of first layers that have no experts.", ge=0, le=MOST_LAYERS)
    ] = 0
    every: Annotated[
        int, Meta(description="Of the other layers, the last of each so many has experts.", ge=1, le=MOST_LAYERS)
    ] = 1


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model, from which `plan` estimates memory and time. Sizes given here replace those of `name` or `config`.

    Megatron's own arguments under `args:` are the default.
    """

    name: Annotated[
        str | None, Meta(description="A model that hpc-launch knows.", min_length=1, examples=["llama3-8b"])
    ] = None
    config: Annotated[
        str | None,
        Meta(
            description="A Hugging Face `config.json` or the folder that contains it, or a Megatron or FlagScale YAML "
            "file, relative to the job file.",
            min_length=1,
        ),
    ] = None
    sequence: Annotated[
        Size | None, Meta(description="Tokens per sample in this training. Default: the model's longest sequence.")
    ] = None
    layers: Annotated[int | None, Meta(description="Transformer layers.", ge=1, le=MOST_LAYERS)] = None
    hidden: Annotated[Size | None, Meta(description="Width of the residual stream.")] = None
    ffn: Annotated[Size | None, Meta(description="Inner width of a dense layer's MLP.")] = None
    vocab: Annotated[Size | None, Meta(description="Entries of the vocabulary.")] = None
    heads: Annotated[Size | None, Meta(description="Attention heads.")] = None
    query_groups: Annotated[
        Size | None, Meta(description="Key and value heads of grouped-query attention. Default: one per head.")
    ] = None
    head_dim: Annotated[Size | None, Meta(description="Width of a head. Default: `hidden` / `heads`.")] = None
    gated: Annotated[
        bool | None, Meta(description="Whether the MLP has a gate, as in SwiGLU: three matrices. Default: true.")
    ] = None
    tied: Annotated[bool | None, Meta(description="Whether the output layer is the embedding. Default: false.")] = None
    biases: Annotated[bool | None, Meta(description="Whether linear layers have biases. Default: false.")] = None
    positions: Annotated[
        SizeOrNone | None, Meta(description="Rows of a learned position embedding. Default: 0, rotary positions.")
    ] = None
    latent: Annotated[ModelLatent | None, Meta(description="Sizes of multi-head latent attention.")] = None
    experts: Annotated[ModelExperts | None, Meta(description="Mixture of experts.")] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`model: llama3-8b`, `model: path/to/config.json`."""
        if not isinstance(value, str):
            return None
        is_path = "/" in value or value.endswith((".json", ".yaml", ".yml"))
        return {"config" if is_path else "name": value}
