"""The sizes of a transformer, as a file or a command line gives them, and how many parameters it has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.job.document import scalar
from hpc_launch.job.model import LARGEST_SIZE, ModelExperts, ModelLatent
from hpc_launch.job.shell_text import visible
from hpc_launch.job.type_hints import describe
from hpc_launch.layouts.parallel_layout import ModelShape


class GivenValues(Struct, frozen=True):
    """Values by name. `whole` is the place of all, for what is missing."""

    values: Mapping[str, Any]
    places: Mapping[str, Place]
    whole: Place | None


class ValueReader:
    """Takes sizes from given values and collects what is wrong with them.

    A size has several names if programs name it differently; the first one given counts. A faulty size is read as 1.
    """

    def __init__(self, given: GivenValues) -> None:
        self.given = given
        self.findings: list[Finding] = []

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """A size; without a default it must be given."""
        name = self.name_of(*names)
        if name is None:
            if default is None:
                hint = f"add it: a whole number between {least} and {most}"
                self.report(FindingCode.MISSING_KEY, f"`{names[0]}` is missing", None, hint)
            return least if default is None else default
        value = self._scalar(name)
        if isinstance(value, bool) or not isinstance(value, int):
            message = f"`{name}` must be a whole number, not {describe(self.given.values[name])}"
            self.report(FindingCode.WRONG_TYPE, message, name, f"write a number between {least} and {most}")
        elif not least <= value <= most:
            shown = value if abs(value) < 10**20 else "a number with more than 20 digits"
            message = f"`{name}` must be between {least} and {most}, not {shown}"
            self.report(FindingCode.INVALID_VALUE, message, name, "correct the number")
        else:
            return value
        return least

    def flag(self, *names: str, default: bool) -> bool:
        """True or false."""
        name = self.name_of(*names)
        if name is None:
            return default
        value = self._scalar(name)
        if isinstance(value, bool):
            return value
        message = f"`{name}` must be true or false, not {describe(self.given.values[name])}"
        self.report(FindingCode.WRONG_TYPE, message, name, "write true or false")
        return default

    def _scalar(self, name: str) -> Any:
        value = self.given.values[name]
        return scalar(value) if isinstance(value, str) else value

    def text(self, *names: str) -> str | None:
        """Text, or None if it is not given."""
        name = self.name_of(*names)
        value = None if name is None else self.given.values[name]
        return value if isinstance(value, str) else None

    def name_of(self, *names: str) -> str | None:
        """The first of the names that has a value."""
        return next((name for name in names if self.given.values.get(name) is not None), None)

    def report(self, code: FindingCode, message: str, name: str | None, hint: str) -> None:
        """Add an error at the value of this name, or about the whole."""
        place = self.given.whole if name is None else self.given.places.get(name, self.given.whole)
        self.findings.append(Finding(code, visible(message), place, hint))


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


class Experts(ModelExperts, frozen=True, kw_only=True):
    """The mixture-of-experts layers of a model, with what only some families have."""

    shared_gate: bool = False
    """Whether a gate scales the output of the shared experts (Qwen2-MoE)."""
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
    latent: ModelLatent | None = None
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


@lru_cache(maxsize=64)
def parameters(model: ModelConfig) -> ModelParameters:
    """Parameters of the whole model, before it is divided."""
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


def _latent_attention(model: ModelConfig, latent: ModelLatent) -> tuple[int, int, int]:
    """The same for multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""
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
