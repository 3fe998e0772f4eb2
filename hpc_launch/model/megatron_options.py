"""Read the sizes of a model from Megatron's options, as arguments or in a YAML file.

Names and defaults: Megatron-LM d98e8a64, megatron/training/arguments.py and core/transformer/transformer_config.py;
`hidden_dim_multiplier` and `multiple_of`: FlagScale da4935ec, flagscale/train/arguments.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpc_launch.base.findings import FindingCode, Place
from hpc_launch.job.document import Document, KeyPath
from hpc_launch.job.model import MOST_EXPERTS, MOST_LAYERS, ModelLatent
from hpc_launch.layouts.parallel_layout import ModelShape
from hpc_launch.model.model_config import Experts, GivenValues, ModelConfig, ValueReader

SHAPE_OPTIONS = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "heads",
    "num_query_groups": "query_groups",
    "num_experts": "num_experts",
    "seq_length": "seq_length",
}
"""The field of ModelShape that an option sets."""

BATCH_ARGUMENTS = {
    "micro_batch": ("micro_batch_size", "per_device_train_batch_size", "train_micro_batch_size_per_gpu"),
    "gradient_accumulation": ("gradient_accumulation_steps",),
    "global_batch": ("global_batch_size",),
}
"""Arguments by the key of `strategy:` that they mean, as Transformers, DeepSpeed and Megatron name them."""

_BLOCKS = ("model", "language_model", "data", "system")
"""Blocks of a YAML file, in the order in which an option is looked for."""


def arguments(args: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[str, Any, str | int]]:
    """Each option among a job's arguments, as `--name`, with its value and its key or index."""
    if isinstance(args, Mapping):
        for key, value in args.items():
            if value is not None and value is not False:
                yield (key if key.startswith("-") else f"--{key}"), value, key
        return
    for index, word in enumerate(args):
        name, equals, value = str(word).partition("=")
        if name.startswith("--"):
            following = args[index + 1] if index + 1 < len(args) else None
            is_flag = not equals and (following is None or str(following).startswith("--"))
            yield name, (value if equals else True if is_flag else following), index


def given_arguments(args: Mapping[str, Any] | Sequence[Any], places: Mapping[KeyPath, Place]) -> GivenValues:
    """The options of a job's `args:`; `places` are those of the job file."""
    options = [(name[2:].replace("-", "_"), value, at) for name, value, at in arguments(args)]
    values = {"group_query_attention": False} | {name: value for name, value, _ in options}
    where = {name: places[("args", at)] for name, _, at in options if ("args", at) in places}
    return GivenValues(values, where, places.get(("args",), places.get(())))


def given_in_file(document: Document) -> GivenValues:
    """The options of a YAML file, whichever block they are in."""
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}

    def add(data: Mapping[str, Any], path: KeyPath) -> None:
        for key, value in data.items():
            if isinstance(value, Mapping):
                add(value, (*path, key))
            elif key not in values:
                values[key], places[key] = value, document.places[(*path, key)]

    for block in _BLOCKS:
        if isinstance(document.data.get(block), Mapping):
            add(document.data[block], (block,))
    add(document.data, ())
    return GivenValues(values, places, document.places.get(("model",), document.places[()]))


def shape_of_arguments(args: Mapping[str, Any] | Sequence[Any]) -> ModelShape:
    """The sizes that limit parallelism, as far as a job's arguments give them."""
    given = {name[2:].replace("-", "_"): str(value) for name, value, _ in arguments(args)}
    sizes = {field: given[name] for name, field in SHAPE_OPTIONS.items() if name in given}
    return ModelShape(**{field: int(text) for field, text in sizes.items() if _is_size(text)})


def from_megatron(given: GivenValues) -> tuple[ModelConfig, ValueReader]:
    """The model that Megatron builds from these options, to be used only if the reader has no findings."""
    reader = ValueReader(given)
    hidden, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    layers = reader.size("num_layers", most=MOST_LAYERS)
    gated = reader.flag("swiglu", "gated_linear_unit", default=False)
    longest = reader.size("max_position_embeddings", "seq_length", default=0, least=0)
    biases = reader.flag("add_bias_linear", default=not reader.flag("disable_bias_linear", default=False))
    grouped = reader.flag("group_query_attention", default=True)
    ffn = reader.size("ffn_hidden_size", default=_ffn(reader, hidden, gated=gated))
    latent = _latent(reader) if reader.flag("multi_latent_attention", default=False) else None
    model = ModelConfig(
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        vocab=reader.size("padded_vocab_size", "vocab_size"),
        heads=heads,
        query_groups=reader.size("num_query_groups", default=heads) if grouped and latent is None else heads,
        head_dim=latent.nope_dim + latent.rope_dim
        if latent
        else reader.size("kv_channels", default=max(hidden // heads, 1)),
        gated=gated,
        tied=not reader.flag("untie_embeddings_and_output_weights", default=False),
        latent=latent,
        experts=_experts(reader, layers, ffn)
        if reader.size("num_experts", "num_moe_experts", default=0, least=0)
        else None,
        positions=0 if _is_rotary(reader) else longest,
        qkv_bias=biases or reader.flag("add_qkv_bias", default=False),
        biases=biases,
        norm_bias=reader.text("normalization") != "RMSNorm",
        head_norms=latent is None and reader.flag("qk_layernorm", default=False),
        next_token_layers=reader.size("mtp_num_layers", "num_mtp_predictor", default=0, least=0),
        sequence=reader.size("seq_length", default=longest, least=0) or None,
    )
    return model, reader


def _ffn(reader: ValueReader, hidden: int, *, gated: bool) -> int:
    if not gated:
        return 4 * hidden
    width = int(4 * hidden * 2 / 3)
    if reader.name_of("multiple_of") is None:
        return max(width // 64 * 64, 1)
    multiple, factor = reader.size("multiple_of"), reader.given.values.get("hidden_dim_multiplier", 1)
    if isinstance(factor, (int, float)) and 0 < factor < 100:
        width = int(width * factor)
    return -(-width // multiple) * multiple


def _is_rotary(reader: ValueReader) -> bool:
    return (
        reader.flag("use_rotary_position_embeddings", "no_position_embedding", default=False)
        or (reader.text("position_embedding_type") or "learned_absolute") != "learned_absolute"
    )


def _latent(reader: ValueReader) -> ModelLatent:
    return ModelLatent(
        query_rank=reader.size("q_lora_rank", default=0, least=0) or None,
        key_value_rank=reader.size("kv_lora_rank", default=32),
        nope_dim=reader.size("qk_head_dim", default=128),
        rope_dim=reader.size("qk_pos_emb_head_dim", default=64),
        value_dim=reader.size("v_head_dim", default=128),
    )


def _experts(reader: ValueReader, layers: int, ffn: int) -> Experts:
    return Experts(
        count=reader.size("num_experts", "num_moe_experts", most=MOST_EXPERTS),
        per_token=reader.size("moe_router_topk", default=2, most=MOST_EXPERTS),
        ffn=reader.size("moe_ffn_hidden_size", default=ffn),
        shared_ffn=reader.size("moe_shared_expert_intermediate_size", default=0, least=0),
        shared_gate=reader.flag("moe_shared_expert_gate", default=False),
        layers=_expert_layers(reader, layers),
        router_bias=reader.flag("moe_router_enable_expert_bias", default=False),
    )


def _expert_layers(reader: ValueReader, layers: int) -> tuple[int, ...] | None:
    """Layers with experts: every Nth from the first, or a list with one 0 or 1 per layer."""
    value = reader.given.values.get("moe_layer_freq", 1)
    text = str(value).strip().strip("'\"")
    if _is_size(text):
        return None if int(text) == 1 else tuple(range(0, layers, int(text)))
    pattern = _evaluate(text)
    if pattern is None or len(pattern) != layers:
        found = "" if pattern is None else f", not {len(pattern)}"
        message = f"`moe_layer_freq` must be a number, or a list with one 0 or 1 for each of {layers} layers{found}"
        reader.report(FindingCode.INVALID_VALUE, message, "moe_layer_freq", "for example `[0]*3+[1]*58`")
        return None
    return tuple(index for index, has_experts in enumerate(pattern) if has_experts)


def _evaluate(text: str) -> list[int] | None:
    """The list that `([0]*3+[1]*58)*1` stands for, or None. Nothing but lists, `+` and `*` is evaluated."""
    if len(text) > 10 * MOST_LAYERS:
        return None
    try:
        return _items(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _items(node: ast.expr) -> list[int]:
    """Raises ValueError for any other expression, or more items than a model has layers."""
    if isinstance(node, ast.List):
        items = [item.value for item in node.elts if isinstance(item, ast.Constant) and item.value in {0, 1}]
        if len(items) == len(node.elts):
            return [1 if item else 0 for item in items]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        result = _items(node.left) + _items(node.right)
        if len(result) <= MOST_LAYERS:
            return result
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        result, times = _items(node.left), node.right.value
        if isinstance(times, int) and times >= 0 and len(result) * times <= MOST_LAYERS:
            return result * times
    raise ValueError


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0
