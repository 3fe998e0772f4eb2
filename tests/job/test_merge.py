"""The merge: later layers win, and every value that is left has the origin that set it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.base.findings import Place
from hpc_launch.job.document import KeyPath
from hpc_launch.job.merge import Layer, merge

KEYS = st.sampled_from("abcd")
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda children: st.dictionaries(KEYS, children, max_size=3),
    max_leaves=8,
)
LAYERS = st.lists(st.dictionaries(KEYS, VALUES, max_size=4), min_size=1, max_size=4)


def layer(name: str, data: dict[str, Any]) -> Layer:
    return Layer(name, data, {path: Place(name, 1, 1) for path in paths(data)})


def paths(value: Any, path: KeyPath = ()) -> list[KeyPath]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, child in children for inner in paths(child, (*path, key)))]


def merged(*data: dict[str, Any]) -> dict[str, Any]:
    return merge([layer(str(number), each) for number, each in enumerate(data)]).data


@given(LAYERS)
def test_every_value_has_an_origin_that_set_it(data: list[dict[str, Any]]) -> None:
    result = merge([layer(str(number), each) for number, each in enumerate(data)])
    assert set(result.origins) == set(paths(result.data)) - {()}
    for path, origin in result.origins.items():
        value: Any = data[int(origin.layer)]
        for key in path:
            value = value[key]
        here: Any = result.data
        for key in path:
            here = here[key]
        if not isinstance(here, dict):
            assert here == value


@given(st.dictionaries(KEYS, VALUES), st.dictionaries(KEYS, VALUES), st.dictionaries(KEYS, VALUES))
def test_layers_can_be_put_together_from_the_lowest_up(a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    assert merged(a, b, c) == merged(merged(a, b), c)


@given(st.dictionaries(KEYS, VALUES))
def test_a_layer_over_itself_or_nothing_changes_nothing(a: dict[str, Any]) -> None:
    assert merged(a, a) == merged({}, a) == merged(a, {}) == a
