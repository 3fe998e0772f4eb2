"""Train small decoders for two steps and write the bytes that each rank needs for its states, a JSON file per rank.

Counts the storage of every live tensor when the memory of the states is largest: after the backward
pass and inside the optimizer's step. Activations are gone by then.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Layer(nn.Module):
    """Attention with grouped queries, and a gated MLP."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        hidden, dim = sizes["hidden"], sizes["head_dim"]
        self.heads, self.groups = sizes["heads"], sizes["query_groups"]
        self.norms = nn.ModuleList([nn.RMSNorm(hidden), nn.RMSNorm(hidden)])
        self.queries = nn.Linear(hidden, self.heads * dim, bias=False)
        self.keys = nn.Linear(hidden, self.groups * dim, bias=False)
        self.values = nn.Linear(hidden, self.groups * dim, bias=False)
        self.out = nn.Linear(self.heads * dim, hidden, bias=False)
        self.gate = nn.Linear(hidden, sizes["ffn"], bias=False)
        self.up = nn.Linear(hidden, sizes["ffn"], bias=False)
        self.down = nn.Linear(sizes["ffn"], hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then the MLP."""
        y = self.norms[0](x)
        query, key, value = (
            part(y).unflatten(-1, (count, -1)).transpose(1, 2)
            for part, count in ((self.queries, self.heads), (self.keys, self.groups), (self.values, self.groups))
        )
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A decoder without positions, which have no parameters."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes["vocab"], sizes["hidden"])
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes["layers"]))
        self.norm = nn.RMSNorm(sizes["hidden"])
        self.output = nn.Linear(sizes["hidden"], sizes["vocab"], bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.output(self.norm(x)).flatten(0, 1).float(), tokens.flatten())


class Peak(TorchDispatchMode):
    """The largest number of bytes that all tensors made under this mode had at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.bytes = 0
        self.counts = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor):
                storage = getattr(made, "_local_tensor", made).untyped_storage()
                self.storages[id(storage)] = weakref.ref(storage)
        if self.counts:
            self.count()
        return result

    def count(self) -> None:
        """Count what is alive now."""
        self.storages = {key: found for key, found in self.storages.items() if found() is not None}
        live = [storage for found in self.storages.values() if (storage := found()) is not None]
        self.bytes = max(self.bytes, sum(storage.nbytes() for storage in live if storage.device.type == "cpu"))


def main() -> None:
    """`measured_states.py STRATEGY,... MODELS FOLDER`: the second is a JSON list of sizes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = []
    for sizes in json.loads(sys.argv[2]):
        for strategy in sys.argv[1].split(","):
            peak = measured(strategy, sizes)
            found.append({"strategy": strategy, "sizes": sizes, "peak": peak})
            gc.collect()
    Path(sys.argv[3], f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def measured(strategy: str, sizes: dict[str, int]) -> int:
    """The peak of two steps."""
    torch.manual_seed(1)
    with Peak() as peak:
        model = Decoder(sizes)
        tokens = torch.randint(sizes["vocab"], (1, 8))
        backward, step = zero(model, int(strategy[4:])) if strategy.startswith("zero") else plain(model, strategy)
        for _ in range(2):
            backward(tokens)
            gc.collect()
            peak.count()
            peak.counts = True
            step()
            peak.counts = False
    return peak.bytes


def plain(model: nn.Module, strategy: str) -> tuple[Callable[[torch.Tensor], None], Callable[[], None]]:
    """PyTorch's DDP or FSDP 2, with master weights and bf16 computation."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    trained: nn.Module = model
    if strategy == "fsdp":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    else:
        # Otherwise DDP keeps a second copy of the gradients, in its buckets.
        trained = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def backward(tokens: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = trained(tokens)
        loss.backward()

    return backward, optimizer.step


def zero(model: nn.Module, stage: int) -> tuple[Callable[[torch.Tensor], None], Callable[[], None]]:
    """DeepSpeed's ZeRO in bf16, with buckets small enough not to count."""
    import deepspeed
    from deepspeed import ops

    ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
    sharding = {"stage": stage, "reduce_bucket_size": 1000, "allgather_bucket_size": 1000}
    if stage == 3:
        sharding |= {"stage3_max_live_parameters": 0, "stage3_param_persistence_threshold": 0}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": sharding,
        "zero_allow_untested_optimizer": True,
    }
    inner = torch.optim.AdamW(model.parameters(), fused=True)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=inner, config=config, dist_init_required=False)
    return lambda tokens: engine.backward(engine(tokens)), engine.step


os.environ.setdefault("OMP_NUM_THREADS", "1")
main()
