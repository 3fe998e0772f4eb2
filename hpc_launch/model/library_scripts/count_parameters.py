"""Build a model without its values, and print its parameters and sizes as JSON in the last line.

`config`: standard input has a configuration for Transformers. `module PACKAGE.MODULE:FACTORY`: call a function or class
without arguments. The caller's folder is searched for modules only for `module`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

_PARTS = (
    ("norms", ("norm", "ln_", "layer_norm")),
    ("shared_experts", ("shared_expert",)),
    ("experts", ("expert",)),
    ("router", ("router", "mlp.gate.", "block_sparse_moe.gate.", "shared_expert_gate")),
    ("latent", ("q_a_proj", "kv_a_proj")),
    ("attention", ("attn", "attention", "linear_qkv")),
)
"""The part of a layer by the name of a parameter: the first that fits, otherwise the MLP."""

_SIZES = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "heads": ("num_attention_heads", "n_head"),
    "query_groups": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "sequence": ("max_position_embeddings", "n_positions"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_topk"),
    "expert_ffn": ("moe_intermediate_size", "expert_intermediate_size"),
}


def main() -> None:
    """Read the question from the arguments, and answer it."""
    factory = _from_config if sys.argv[1] == "config" else _found(sys.argv[2])
    import torch

    with torch.device("meta"):
        model = factory()
    if not isinstance(model, torch.nn.Module):
        raise SystemExit(f"TypeError: {sys.argv[-1]} returns {type(model).__name__}, not a torch.nn.Module")
    print()
    print(json.dumps({"counts": _counts(model, torch), "sizes": _sizes(model)}))


def _from_config() -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    data = json.load(sys.stdin)
    config = AutoConfig.for_model(data.pop("model_type"), **data)
    return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def _found(target: str) -> Any:
    sys.path.insert(0, os.getcwd())
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _counts(model: Any, torch: Any) -> dict[str, Any]:
    """Parameters of the layers by part, of the embedding and of the output layer; each shared one once."""
    lists = [
        module
        for module in model.modules()
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and len(module) > 1 and _alike(module)
    ]
    layers = max(lists, key=lambda modules: sum(p.numel() for p in modules.parameters()), default=())
    counted = {id(parameter) for layer in layers for parameter in layer.parameters()}
    result = {
        "layers": [_layer(layer) for layer in layers],
        "embedding": 0,
        "output": 0,
        "final_norm": 0,
    }
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    table = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    inputs = {id(parameter) for parameter in table.parameters()} if table is not None else set()
    outputs = {id(parameter) for parameter in head.parameters()} - inputs if head is not None else set()
    for parameter_name, parameter in model.named_parameters():
        if id(parameter) in counted:
            continue
        is_output = id(parameter) in outputs or parameter_name.startswith(("lm_head", "output"))
        part = "output" if is_output else "final_norm" if parameter.ndim == 1 else "embedding"
        result[part] += parameter.numel()
    return result


def _alike(modules: Any) -> bool:
    return len({type(module) for module in modules}) == 1


def _layer(layer: Any) -> dict[str, int]:
    result: dict[str, int] = {}
    for name, parameter in layer.named_parameters():
        part = next((part for part, words in _PARTS if any(word in name.lower() for word in words)), "mlp")
        result[part] = result.get(part, 0) + parameter.numel()
    return result


def _sizes(model: Any) -> dict[str, int | bool]:
    """The sizes that the model's configuration names, if it has one as those of Transformers."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    found: dict[str, int | bool] = {}
    for size, names in _SIZES.items():
        values = (getattr(config, name, None) for name in names)
        value = next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)
        if value is not None:
            found[size] = value
    parameters = [name for name, _ in model.named_parameters()]
    found["gated"] = any(word in name for name in parameters for word in ("gate_proj", "gate_up_proj", ".w3."))
    return found


if __name__ == "__main__":
    main()
