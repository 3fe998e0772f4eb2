"""The sizes of a transformer, from which its parameters, memory and computation follow."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.layouts.parallel_layout import ModelShape


class LayerParameters(Struct, frozen=True, kw_only=True):
    """Parameters of one transformer layer, by how parallelism divides them."""

    attention: int = 0
    """Divided by tensor parallelism."""
    latent: int = 0
    """Down-projections of latent attention. Each tensor-parallel rank has all of them (megatron-core 0.16.1,
    transformer/multi_latent_attention.py: parallel_mode="duplicated")."""
    mlp: int = 0
    """MLP of a dense layer. Divided by tensor parallelism."""
    experts: int = 0
    """All experts of the layer together. Divided by expert and expert-tensor parallelism."""
    shared_experts: int = 0
    """Divided by tensor parallelism."""
    router: int = 0
    """With the shared experts' gate. Each rank has all of it."""
    norms: int = 0
    """Each rank has all of them."""

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.experts + self.outside_experts

    @property
    def outside_experts(self) -> int:
        """All but the experts: what data parallelism, not expert data parallelism, replicates."""
        return self.attention + self.latent + self.mlp + self.shared_experts + self.router + self.norms


class ModelParameters(Struct, frozen=True, kw_only=True):
    """Parameters of a model."""

    embedding: int
    """Token embedding, and learned positions."""
    output: int
    """Output layer; 0 if it is the embedding."""
    final_norm: int
    layers: tuple[LayerParameters, ...]
    next_token: int = 0
    """Of the layers that predict later tokens. `total` and `active` leave them out, as published numbers do."""

    @property
    def total(self) -> int:
        """All parameters of the model, each shared one once."""
        return self.embedding + self.output + self.final_norm + sum(layer.total for layer in self.layers)

    @property
    def experts(self) -> int:
        """Parameters of all experts."""
        return sum(layer.experts for layer in self.layers)


class LatentAttention(Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): sizes per head, except the ranks."""

    query_rank: int | None
    """Width of the compressed queries; None if they are not compressed."""
    key_value_rank: int
    nope_dim: int
    """Part of each query and key without positions."""
    rope_dim: int
    """Part of each query and key with rotary positions. The key's is shared by all heads."""
    value_dim: int


class Experts(Struct, frozen=True, kw_only=True):
    """The mixture-of-experts layers of a model."""

    count: int
    per_token: int
    """Experts that each token is sent to."""
    ffn: int
    """Inner width of one expert."""
    shared_ffn: int = 0
    """Inner width of all shared experts together."""
    shared_gate: bool = False
    """Whether a gate scales the output of the shared experts (Qwen2-MoE)."""
    dense_layers: int = 0
    """Number of first layers that have no experts."""
    every: int = 1
    """Of the layers after these, the last of each so many has experts."""
    layers: tuple[int, ...] | None = None
    """Indexes of the layers that have experts, where neither number describes them."""
    router_bias: bool = False


class ModelConfig(Struct, frozen=True, kw_only=True):
    """A decoder-only transformer. Sizes are those of the whole model, before it is divided."""

    name: str = ""
    layers: int
    hidden: int
    ffn: int
    """Inner width of a dense layer's MLP."""
    vocab: int
    heads: int
    query_groups: int
    """Key and value heads; equal to `heads` without grouped-query attention."""
    head_dim: int
    gated: bool
    """Whether the MLP has a gate: three matrices (SwiGLU) instead of two."""
    tied: bool
    """Whether the output layer is the embedding."""
    latent: LatentAttention | None = None
    experts: Experts | None = None
    positions: int = 0
    """Rows of a learned position embedding; 0 for rotary positions."""
    qkv_bias: bool = False
    biases: bool = False
    """Whether the attention's output and the MLP have biases."""
    norm_bias: bool = False
    """Whether norms have a bias (LayerNorm) or none (RMSNorm)."""
    head_norms: bool = False
    """Whether queries and keys of each head are normalized."""
    next_token_layers: int = 0
    """Further layers that predict later tokens (DeepSeek-V3's MTP). Many implementations leave them out."""
    sequence: int | None = None
    """The longest sequence that the model was made for, in tokens."""
    counted: ModelParameters | None = None
    """Parameters counted in the model itself, where its sizes do not determine them."""

    @property
    def shape(self) -> ModelShape:
        """The sizes that limit parallelism. The hidden size only if the heads' width follows from it."""
        return ModelShape(
            num_layers=self.layers,
            hidden_size=self.hidden if self.hidden % self.heads == 0 else None,
            heads=self.heads,
            query_groups=None if self.query_groups == self.heads else self.query_groups,
            num_experts=None if self.experts is None else self.experts.count,
            seq_length=self.sequence,
        )

    def has_experts(self, index: int) -> bool:
        """Whether the MLP of the layer with this index, from 0, is a mixture of experts."""
        experts = self.experts
        if experts is None:
            return False
        if experts.layers is not None:
            return index in experts.layers
        return index >= experts.dense_layers and (index - experts.dense_layers + 1) % experts.every == 0
