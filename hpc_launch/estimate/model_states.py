"""Memory of parameters, gradients, optimizer states and activations on one GPU.

States: ZeRO (arXiv 1910.02054, section 3.1); Megatron-LM d98e8a64, training/theoretical_memory_usage.py and
core/optimizer/distrib_optimizer.py; DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py; PyTorch 2.13,
distributed/fsdp (sharded parameters stay in 32 bits, and the optimizer works on them).

Activations are what a layer keeps of one micro batch for its backward pass, and what it needs while it runs, in bytes.
After Korthikanti et al. (arXiv 2205.05198, section 4), with what newer programs keep instead:
- norms: input and output (TransformerEngine 2.11, pytorch/module/layernorm_linear.py keeps both);
- attention: queries, keys, values, output, and per head and token one 32-bit sum (FlashAttention, arXiv 2205.14135);
- SwiGLU: both inputs and the product where it is one kernel (Megatron-LM, core/fusions/fused_bias_swiglu.py), else also
  SiLU's result;
- experts: the tokens sent to them, as the dense MLP (Megatron-LM, core/transformer/moe/token_dispatcher.py);
- latent attention: the compressed and the expanded queries, keys and values (Megatron-LM,
  core/transformer/multi_latent_attention.py).
"""

from __future__ import annotations

from typing import NamedTuple

from hpc_launch.estimate.training_setup import Stage, TrainingSetup
from hpc_launch.job.model import ModelLatent
from hpc_launch.model.model_config import Experts, ModelConfig

_ELEMENT = 2
"""Bytes of an activation in bf16 or fp16. FP8 also keeps what is no matrix in 16 bits, and torchao all of it."""


def kept(model: ModelConfig, setup: TrainingSetup, layer: int) -> float:
    """Bytes that this layer keeps of one micro batch, with the setup's recomputation."""
    if setup.recompute == "full":
        return _residual(model, setup)
    if setup.recompute == "selective" and setup.framework == "pytorch":
        return _every_second_matrix(model, setup, layer)
    square = 0.0 if setup.recompute == "selective" else _scores(model, setup)
    return _all(model, setup, layer) + square


def at_work(model: ModelConfig, setup: TrainingSetup, layer: int) -> float:
    """Further bytes while this layer runs backward: gradients of what it kept, and what it computes again.

    Of hidden states of all tokens, a layer holds one and its gradient; with DTensor also the partial sums of both,
    before it reduces them to the rank's tokens (PyTorch 2.6, distributed/tensor/parallel/style.py).
    """
    again = _all(model, setup, layer) + _scores(model, setup) - kept(model, setup, layer)
    scores = 2 * _ELEMENT * _score_count(model, setup)
    partial = 4 if setup.framework == "pytorch" and sequence_split(setup) > 1 else 2
    hidden = partial * gathered(model, setup) + _ring(model, setup)
    return max(again, 0.0) + scores + hidden + _mlp_gradients(model, setup, layer)


def sent_and_received(model: ModelConfig, setup: TrainingSetup) -> float:
    """Bytes that PyTorch's pipeline stages keep of their neighbours' micro batches.

    Outputs until the backward pass, and a buffer for each gradient (PyTorch 2.6, distributed/pipelining/stage.py).
    """
    parallel = setup.layout.parallel
    if setup.framework != "pytorch" or parallel.pp == 1:
        return 0.0
    return _residual(model, setup) * (min(parallel.pp, setup.layout.microbatches) + setup.layout.microbatches)


def gathered(model: ModelConfig, setup: TrainingSetup) -> float:
    """Bytes of one hidden state of all tokens, as sequence parallelism gathers it before a matrix."""
    return setup.tokens * model.hidden * _element(setup)


def sequence_split(setup: TrainingSetup) -> int:
    """Ranks that divide the tokens outside attention and MLP."""
    parallel = setup.layout.parallel
    return parallel.tp if parallel.sequence_parallel else 1


def _element(setup: TrainingSetup) -> int:
    return 4 if setup.precision == "fp32" else _ELEMENT


def _residual(model: ModelConfig, setup: TrainingSetup) -> float:
    return gathered(model, setup) / sequence_split(setup)


def _all(model: ModelConfig, setup: TrainingSetup, layer: int) -> float:
    """Everything but the scores of attention."""
    norms = 4 if setup.fused_norm else 8
    masks = 2 / _element(setup) if setup.dropout else 0
    return _residual(model, setup) * (norms + masks) + _attention(model, setup) + _mlp(model, setup, layer)


def _attention(model: ModelConfig, setup: TrainingSetup) -> float:
    tp, element = setup.layout.parallel.tp, _element(setup)
    sums = 4 * model.heads / tp if setup.flash_attention else 0
    # With context parallelism, the output is kept before and after it is sent back (TransformerEngine 2.11,
    # pytorch/attention/dot_product_attention/context_parallel.py).
    outputs = 2 if setup.layout.parallel.cp > 1 and setup.framework == "megatron" else 1
    if model.latent is not None:
        return setup.tokens * (element * _latent(model, setup, model.latent, outputs) + sums)
    # torchtitan and Transformers give each head its own copy of keys and values (repeat_kv).
    keys = max(model.query_groups, tp) if setup.framework == "megatron" else model.heads
    width = model.head_dim * ((1 + outputs) * model.heads + 2 * keys) / tp
    return setup.tokens * (element * width + sums)


def _latent(model: ModelConfig, setup: TrainingSetup, latent: ModelLatent, outputs: int) -> float:
    """Elements per token. The compressed states are normalized: input and output."""
    compressed = 2 * ((latent.query_rank or 0) + latent.key_value_rank) / sequence_split(setup)
    query = latent.nope_dim + latent.rope_dim
    return compressed + model.heads * (2 * query + (1 + outputs) * latent.value_dim) / setup.layout.parallel.tp


def _ring(model: ModelConfig, setup: TrainingSetup) -> float:
    """Keys and values of all context-parallel ranks, as PyTorch gathers them.

    PyTorch 2.6, distributed/tensor/experimental/_attention.py. Megatron's are exchanged in parts of the same size.
    """
    parallel = setup.layout.parallel
    if setup.framework != "pytorch" or parallel.cp == 1:
        return 0.0
    return setup.tokens * parallel.cp * _element(setup) * 2 * model.heads * model.head_dim / parallel.tp


def _score_count(model: ModelConfig, setup: TrainingSetup) -> float:
    if setup.flash_attention:
        return 0.0
    parallel = setup.layout.parallel
    return setup.tokens * setup.sequence / parallel.cp * model.heads / parallel.tp


def _scores(model: ModelConfig, setup: TrainingSetup) -> float:
    """Softmax's output; with dropout also its mask of one byte and its output.

    Outside Megatron, softmax works in 32 bits and its output is copied to 16 (Transformers 5.23, eager attention).
    """
    softmax = _ELEMENT if setup.framework == "megatron" else 4 + _ELEMENT
    return _score_count(model, setup) * (softmax + (1 + _ELEMENT if setup.dropout else 0))


def _mlp_width(model: ModelConfig, setup: TrainingSetup) -> int:
    """Kept elements per unit of inner width."""
    if not model.gated:
        return 2
    return 3 if setup.framework == "megatron" or setup.compiled else 4


def _mlp(model: ModelConfig, setup: TrainingSetup, layer: int) -> float:
    tp, width, element = setup.layout.parallel.tp, _mlp_width(model, setup), _element(setup)
    if model.experts is None or not model.has_experts(layer):
        return setup.tokens * element * width * model.ffn / tp
    experts = model.experts
    routed = _sent(setup, experts) * (model.hidden + width * experts.ffn / setup.expert_tensor_parallel)
    shared = setup.tokens * width * experts.shared_ffn / tp
    return element * (routed + shared)


def _sent(setup: TrainingSetup, experts: Experts) -> float:
    """Tokens that the experts of one GPU get if all experts get the same number."""
    return setup.tokens * experts.per_token * setup.expert_tensor_parallel / setup.layout.parallel.tp


def _mlp_gradients(model: ModelConfig, setup: TrainingSetup, layer: int) -> float:
    """Gradients of the inner width; for experts also of the tokens, as sent, received, sorted and returned."""
    element, inputs = _element(setup), 2 if model.gated else 1
    if model.experts is None or not model.has_experts(layer):
        return setup.tokens * element * inputs * model.ffn / setup.layout.parallel.tp
    experts = model.experts
    inner = inputs * experts.ffn / setup.expert_tensor_parallel
    return element * _sent(setup, experts) * (4 * model.hidden + inner)


def _every_second_matrix(model: ModelConfig, setup: TrainingSetup, layer: int) -> float:
    """torchtitan's selective recomputation keeps attention's output and every second product of matrices.

    torchtitan 9dec370, parallelisms/parallelize_llama.py: queries, values, the MLP's gate and its output. The compiler
    drops the last, which no gradient needs.
    """
    tp, element = setup.layout.parallel.tp, _element(setup)
    heads = model.head_dim * (2 * model.heads + model.query_groups) / tp
    inner, output = setup.tokens * model.ffn / tp, 0 if setup.compiled else model.hidden
    if model.experts is not None and model.has_experts(layer):
        inner = _sent(setup, model.experts) * model.experts.ffn / setup.expert_tensor_parallel
    sums = setup.tokens * 4 * model.heads / tp
    return _residual(model, setup) + element * (setup.tokens * (heads + output) + inner) + sums


_ADAM = 8.0
"""Bytes per parameter of two moments in 32 bits."""
_ADAM_8_BIT = 2 * (1 + 4 / 256)
"""Two moments of one byte, and a 32-bit scale for each block of 256 (bitsandbytes 0.45, optim/optimizer.py)."""
_MOMENTUM = 4.0
_SUB_GROUP = 10**9
"""Elements of a rank that stage 3 updates together (DeepSpeed 0.19.8, runtime/zero/config.py, sub_group_size)."""


class ModelStates(NamedTuple):
    """Bytes on one GPU."""

    parameters: int
    gradients: int
    optimizer: int


def model_states(stage: Stage, setup: TrainingSetup) -> ModelStates:
    """Bytes of the states on one GPU of the stage. What is offloaded to the host does not count."""
    stored = parameter_bytes(setup)
    # Transformer Engine keeps each weight in 8 bits as it is and transposed (2.11, pytorch/module/base.py).
    copies = 2.0 if setup.precision == "fp8" and setup.framework == "megatron" else 0.0
    master = 4.0 if stored == 2 else 0.0
    sizes = ((stage.dense, group_size(setup)), (stage.experts, group_size(setup, experts=True)))
    share_parameters, share_gradients, share_optimizer = _shares(setup)
    parameter = gradient = 0.0
    optimizer = 0.0
    for count, ranks in sizes:
        parameter += count * (stored + copies) / (ranks if share_parameters else 1)
        gradient += _gradients(count, setup, ranks if share_gradients else 1, ranks)
        optimizer += count * master / (ranks if share_optimizer else 1)
    optimizer += _moments(stage, setup, shared=share_optimizer)
    if setup.offload_optimizer:
        optimizer = 0.0
        gradient = gradient if setup.framework == "megatron" else 0.0
    return ModelStates(
        parameters=0 if setup.offload_parameters else round(parameter),
        gradients=round(gradient),
        optimizer=round(optimizer),
    )


def group_size(setup: TrainingSetup, *, experts: bool = False) -> int:
    """Ranks that share one copy of the states."""
    ranks = setup.expert_data_parallel if experts else setup.data_parallel
    return min(setup.shard_group, ranks) if setup.shard_group else ranks


def parameter_bytes(setup: TrainingSetup) -> int:
    """Bytes per parameter as stored, without its 32-bit copy in the optimizer."""
    return 4 if setup.framework == "pytorch" or setup.precision == "fp32" else 2


def shards_parameters(setup: TrainingSetup) -> bool:
    """Whether the replicas share the parameters, and gather each layer when they need it."""
    return setup.sharding in ("zero3", "fsdp1", "fsdp2", "hsdp")


def _gradients(count: int, setup: TrainingSetup, gradient_ranks: int, ranks: int) -> float:
    """Bytes of the gradients at their peak.

    DeepSpeed flattens a copy of the rank's gradients and converts that to 32 bits. Stage 1 has freed those of
    other ranks by then; stage 3 works on one sub-group at a time.
    """
    stored = parameter_bytes(setup)
    held = count * (4.0 if setup.framework == "megatron" else stored)
    step = 6.0 if setup.framework == "deepspeed" and stored == 2 and setup.sharding != "none" else 0.0
    if setup.sharding == "zero1":
        return max(held, (held + count * step) / ranks)
    group = min(count / ranks, _SUB_GROUP) if setup.sharding == "zero3" else count / ranks
    return held / gradient_ranks + group * step


def _shares(setup: TrainingSetup) -> tuple[bool, bool, bool]:
    """Whether the replicas share parameters, gradients and optimizer states."""
    if setup.sharding == "none":
        return False, False, False
    return shards_parameters(setup), shards_parameters(setup) or setup.sharding == "zero2", True


def _moments(stage: Stage, setup: TrainingSetup, *, shared: bool) -> float:
    """Bytes of what the optimizer remembers of past gradients.

    Muon keeps one moment of the matrices of layers; the rest is left to Adam (Keller Jordan's Muon; arXiv 2502.16982).
    """
    dense = group_size(setup) if shared else 1
    expert = group_size(setup, experts=True) if shared else 1
    matrix = {"adam": _ADAM, "adam8bit": _ADAM_8_BIT, "muon": _MOMENTUM, "sgd": _MOMENTUM}[setup.optimizer]
    other = _ADAM if setup.optimizer == "muon" else matrix
    return (stage.matrices * matrix + stage.ends * other) / dense + stage.experts * matrix / expert
