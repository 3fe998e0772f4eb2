"""Numbers of parameters follow from the sizes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpc_launch.model.model_config import Experts, ModelConfig, active_parameters, parameters

_TINY = ModelConfig(layers=4, hidden=8, ffn=16, vocab=100, heads=2, query_groups=1, head_dim=4, gated=True, tied=True)
_EXPERTS = Experts(count=4, per_token=1, ffn=2, shared_ffn=3, shared_gate=True, dense_layers=1, router_bias=True)


def _mixture(experts: Experts) -> ModelConfig:
    return replace(_TINY, experts=experts)


def test_a_layer_has_each_part_that_parallelism_divides() -> None:
    layer = parameters(_mixture(_EXPERTS)).layers[1]
    assert layer.attention == 8 * 8 + 2 * 8 * 4 + 8 * 8
    assert layer.experts == 4 * 3 * 8 * 2
    assert layer.shared_experts == 3 * 8 * 3
    assert layer.router == 8 * 4 + 4 + 8
    assert layer.norms == 2 * 8
    assert layer.total == layer.experts + layer.outside_experts
    assert parameters(_mixture(_EXPERTS)).layers[0].mlp == 3 * 8 * 16


def test_the_whole_is_the_sum_of_its_parts() -> None:
    counts = parameters(replace(_TINY, tied=False, next_token_layers=1))
    assert counts.embedding == counts.output == 800
    assert counts.total == 1600 + 8 + 4 * counts.layers[0].total
    assert counts.next_token == counts.layers[3].total + 2 * 64 + 3 * 8


def test_a_token_uses_its_own_experts() -> None:
    model = _mixture(_EXPERTS)
    assert parameters(model).total - active_parameters(model) == 3 * 3 * (3 * 8 * 2)


@pytest.mark.parametrize(
    ("experts", "layers"),
    [
        (Experts(count=4, per_token=1, ffn=2), [0, 1, 2, 3]),
        (Experts(count=4, per_token=1, ffn=2, dense_layers=2), [2, 3]),
        (Experts(count=4, per_token=1, ffn=2, every=2), [1, 3]),
        (Experts(count=4, per_token=1, ffn=2, dense_layers=1, every=2), [2]),
        (Experts(count=4, per_token=1, ffn=2, layers=(0, 3)), [0, 3]),
    ],
)
def test_which_layers_have_experts(experts: Experts, layers: list[int]) -> None:
    assert [index for index in range(4) if parameters(_mixture(experts)).layers[index].experts] == layers
