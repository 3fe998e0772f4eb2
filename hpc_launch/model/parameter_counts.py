"""Numbers of parameters: of one layer, and of a whole model."""

from __future__ import annotations

from msgspec import Struct


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
