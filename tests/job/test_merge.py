"""The merge: later layers win, every value that is left has the origin that set it, and marks at keys.

A mark says how a layer adds to a list, takes from it or replaces a mapping.
"""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.json_schema import json_schema
from hpc_launch.base.findings import Place
from hpc_launch.job.document import KeyPath
from hpc_launch.job.job import JobSpec
from hpc_launch.job.merge import Layer, Merged, merge, parse_operators
from hpc_launch.job.yaml_source import parse_document


def layer(name: str, text: str) -> Layer:
    document, faults = parse_document(text, name)
    assert document is not None, faults
    parsed, found = parse_operators(name, document, {(): JobSpec})
    assert not found
    return parsed


def merged(*texts: str) -> Merged:
    return merge([layer(f"{number}.yaml", text) for number, text in enumerate(texts)])


def modules(*texts: str) -> Any:
    return merged(*(f"environment: {{{text}}}" for text in texts)).data["environment"].get("modules")


@pytest.mark.parametrize(
    ("layers", "result"),
    [
        (["modules: [a]", "modules: [b]"], ["b"]),
        (["modules: [a]", "modules+: [b, c]"], ["a", "b", "c"]),
        (["modules: [a]", "+modules: [b, c]"], ["b", "c", "a"]),
        (["modules: [a, b, a]", "modules-: [a]"], ["b"]),
        (["modules: [a, b]", "modules-: [a], modules+: [c]"], ["b", "c"]),
        (["modules+: [a]", "modules+: [b]"], ["a", "b"]),
        (["modules: [a]", "modules=: [b]"], ["b"]),
        (["modules-: [a]", "modules: [b]"], ["b"]),
    ],
)
def test_a_mark_says_how_a_list_changes(layers: list[str], result: list[str]) -> None:
    assert modules(*layers) == result


def test_keys_of_a_mapping_are_taken_away_or_the_whole_is_replaced() -> None:
    assert merged("env: {A: 1, B: 2}", "env-: [A]").data["env"] == {"B": 2}
    assert merged("env: {A: 1, B: 2}", "env=: {C: 3}").data["env"] == {"C": 3}


def test_each_item_keeps_the_place_where_it_was_written() -> None:
    result = merged("environment:\n  modules: [a, b]", "environment:\n  +modules: [c]\n  modules-: [a]")
    places = [str(result.origin("environment", "modules", at).place) for at in (0, 1)]
    assert result.data["environment"]["modules"] == ["c", "b"]
    assert places == ["1.yaml:2:14", "0.yaml:2:16"]


def test_a_mark_with_nothing_below_it_counts_again_over_another_layer() -> None:
    """As the site's defaults do over a stack: they are put together first, and laid over it later."""
    upper = merged("environment: {modules+: [b]}", "environment: {modules+: [c]}")
    lower = layer("stack", "environment: {modules: [a]}")
    both = merge([lower, Layer(upper.data, upper.places, name="upper", operators=upper.operators)])
    assert both.data["environment"]["modules"] == ["a", "b", "c"]


def test_a_plain_value_ends_such_a_mark() -> None:
    upper = merged("environment: {modules+: [b]}", "environment: {modules: [c]}")
    assert not upper.operators


def test_names_of_the_users_own_choice_carry_no_marks() -> None:
    assert merged("env: {A+: 1}\nargs: {lr-: 2, opt=: 3}").data == {"env": {"A+": 1}, "args": {"lr-": 2, "opt=": 3}}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("environment: {modules+: a}", "job.yaml:1:15"),
        ("environment: {modules-: {a: 1}}", "job.yaml:1:15"),
        ("nodes+: 3", "job.yaml:1:1"),
        ("env=: 3", "job.yaml:1:1"),
        ("environment: {modules: [a], modules+: [b]}", "job.yaml:1:29"),
    ],
)
def test_a_mark_where_it_cannot_be_is_a_finding(text: str, place: str) -> None:
    document, _ = parse_document(text, "job.yaml")
    assert document is not None
    _, found = parse_operators("job", document, {(): JobSpec})
    assert [(finding.code, str(finding.place)) for finding in found] == [("HL021", place)]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("environment: {modules+: [a], +source: [b], modules-: [c]}", True),
        ("env=: {A: 1}\nenv-: [B]\nexclude+: [n1]", True),
        ("environment: {modules+: a}", False),
        ("nodes+: 3", False),
        ("+env: [A]", False),
    ],
)
def test_an_editor_knows_the_marks(text: str, fits: bool) -> None:
    document, _ = parse_document(f"name: x\nscript: y\n{text}", "job.yaml")
    assert document is not None
    assert jsonschema.Draft202012Validator(json_schema(JobSpec)).is_valid(document.data) is fits


# Any data

KEYS = st.sampled_from("abcd")
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda children: st.dictionaries(KEYS, children, max_size=3),
    max_leaves=8,
)
LAYERS = st.lists(st.dictionaries(KEYS, VALUES, max_size=4), min_size=1, max_size=4)


def layer_of(name: str, data: dict[str, Any]) -> Layer:
    return Layer(data, {path: Place(name, 1, 1) for path in paths(data)}, name=name)


def paths(value: Any, path: KeyPath = ()) -> list[KeyPath]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, child in children for inner in paths(child, (*path, key)))]


def merged_data(*data: dict[str, Any]) -> dict[str, Any]:
    return merge([layer_of(str(number), each) for number, each in enumerate(data)]).data


@given(LAYERS)
def test_every_value_has_an_origin_that_set_it(data: list[dict[str, Any]]) -> None:
    result = merge([layer_of(str(number), each) for number, each in enumerate(data)])
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
    assert merged_data(a, b, c) == merged_data(merged_data(a, b), c)


@given(st.dictionaries(KEYS, VALUES))
def test_a_layer_over_itself_or_nothing_changes_nothing(a: dict[str, Any]) -> None:
    assert merged_data(a, a) == merged_data({}, a) == merged_data(a, {}) == a
