"""Memory of a node that offloaded optimizer states and weights need."""

from __future__ import annotations

from hpc_launch.model.model_config import ModelConfig
from hpc_launch.model.parameters import parameters

_OPTIMIZER = 16
"""Bytes per parameter: weights, two moments and gradients in 32 bits (DeepSpeed 0.19.8, runtime/zero/stage3.py,
estimate_zero3_model_states_mem_needs)."""
_WITH_WEIGHTS = 18
"""Also the weights in 16 bits."""
_BUFFERS = 1.5
"""Its allowance for buffers."""


def host_memory(model: ModelConfig, nodes: int, *, weights: bool) -> int:
    """Bytes on each of the nodes that share an offloaded optimizer, and the weights too."""
    return round(parameters(model).total * (_WITH_WEIGHTS if weights else _OPTIMIZER) * _BUFFERS / nodes)
