"""YAML with positions: what each spelling means, and what is refused where."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.base.findings import Finding, Place
from hpc_launch.job import yaml_source
from hpc_launch.job.document import Document
from hpc_launch.job.yaml_source import parse_document, read_document


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(yaml_source, "_LOADER", yaml.SafeLoader)
    elif not yaml.__with_libyaml__:
        pytest.skip("this PyYAML was built without libyaml")


def parsed(text: str) -> Document:
    document, findings = parse_document(text, "job.yaml")
    assert findings == []
    assert document is not None
    return document


def one_fault(text: str) -> Finding:
    _, findings = parse_document(text, "job.yaml")
    assert len(findings) == 1, findings
    assert findings[0].hint or findings[0].code == "HL002"
    return findings[0]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("24:00:00", "24:00:00"),
        ("12:30", "12:30"),
        ("01:00:00", "01:00:00"),
        ("0123", "0123"),
        ("0x1F", "0x1F"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("yes", "yes"),
        ("No", "No"),
        ("on", "on"),
        ("OFF", "OFF"),
        ("y", "y"),
        ("tRUE", "tRUE"),
        ("true", True),
        ("False", False),
        ("TRUE", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("nULL", "nULL"),
        ("None", "None"),
        ("7", 7),
        ("-7", -7),
        ("+7", 7),
        ("0", 0),
        ("1e5", 1e5),
        ("3e-4", 3e-4),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-1.E2", -100.0),
        ("12e4567", "12e4567"),
        ("e5", "e5"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("''", ""),
        ("!!str 5", "5"),
        ("=", "="),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_scalar_means_what_a_reader_takes_it_for(written: str, value: object) -> None:
    got = parsed(f"key: {written}\n").data["key"]
    assert got == value
    assert type(got) is type(value)


def test_every_value_and_key_has_its_place() -> None:
    document = parsed("a: 1\nb:\n  - x\n  - {c: '😀', d: 2}\ne:\n")
    assert document.data == {"a": 1, "b": ["x", {"c": "😀", "d": 2}], "e": None}
    expected: dict[tuple[str | int, ...], tuple[int, int]] = {
        (): (1, 1),
        ("a",): (1, 4),
        ("b",): (3, 3),
        ("b", 0): (3, 5),
        ("b", 1): (4, 5),
        ("b", 1, "c"): (4, 9),
        ("b", 1, "d"): (4, 17),
    }
    for path, (line, column) in expected.items():
        place = document.places[path]
        # An emoji is one column to libyaml and to Python's parser alike.
        assert (place.line, place.column) == (line, column), path
    assert document.places[("e",)].line == 5
    assert document.key_places[("b", 1, "d")] == Place("job.yaml", 4, 14)
    assert set(document.key_places) == {path for path in document.places if path and isinstance(path[-1], str)}


def test_the_text_of_a_scalar_is_kept() -> None:
    document = parsed("image: 1.10\naccount: 007\nrate: 3e-4\nflag: TRUE\nquoted: '1.0'\nnothing:\n")
    assert document.written == {
        ("image",): "1.10",
        ("account",): "007",
        ("rate",): "3e-4",
        ("flag",): "TRUE",
        ("quoted",): "1.0",
        ("nothing",): "",
    }


def test_keys_are_texts() -> None:
    assert parsed("1: a\nno: b\n~: c\n1.10: d\n").data == {"1": "a", "no": "b", "~": "c", "1.10": "d"}


def test_an_alias_has_its_own_place_and_its_values_those_of_the_anchor() -> None:
    document = parsed("x: &b {p: 1, q: 2}\ny: {r: *b}\n")
    assert document.data["y"] == {"r": {"p": 1, "q": 2}}
    assert document.places["y", "r"] == Place("job.yaml", 2, 8)
    assert document.places["y", "r", "q"] == Place("job.yaml", 1, 17)


def test_an_alias_is_for_the_last_anchor_before_it() -> None:
    document = parsed("a: &n 1\nb: *n\nc: &n 2\nd: *n\n")
    assert document.data == {"a": 1, "b": 1, "c": 2, "d": 2}


@pytest.mark.parametrize(
    ("text", "code", "place", "says"),
    [
        ("a: 1\n\tb: 2\n", "HL004", "2:1", "tab"),
        ("a:\n\tb: 2\n", "HL004", "2:1", "tab"),
        ("a:\n  b: 1\n  \tc: 2\n", "HL004", "3:3", "tab"),
        ("\ta: 1\n", "HL004", "1:1", "tab"),
        ("a: 1\nb: 2\na: 3\n", "HL003", "3:1", "line 1"),
        ("1: a\n'1': b\n", "HL003", "2:1", "`1`"),
        ("", "HL005", "1:1", "empty"),
        ("# only a comment\n", "HL005", "1:1", "empty"),
        ("---\n...\n", "HL005", "1:1", "empty"),
        ("- a\n- b\n", "HL005", "1:1", "a list"),
        ("name:tiny\n", "HL005", "1:1", "text instead"),
        ("a: 1\n---\nb: 2\n", "HL005", "2:1", "second document"),
        ("a: !!python/object/apply:os.system [x]\n", "HL006", "1:4", "python/object"),
        ("a: !mine x\n", "HL006", "1:4", "!mine"),
        ("a: !!int '5'\n", "HL006", "1:4", "int"),
        ("a: &x {b: *x}\n", "HL006", "1:11", "itself"),
        ("a: &x {b: 1}\nc: {<<: *x}\n", "HL006", "2:5", "<<"),
        ("a: *nowhere\n", "HL002", "1:4", "nowhere"),
        ("? [1, 2]\n: 3\n", "HL002", "1:3", "key"),
        ("a: b: c\n", "HL002", "1:5", "mapping values"),
        ("a: 'x\n", "HL002", "2:1", "line 1"),
        ("a: [1,\n", "HL002", "2:1", "node content"),
        ("a: {x: 1\nb: 2\n", "HL002", "2:2", "line 1"),
        ("a: @x\n", "HL002", "1:4", "cannot start"),
        ("a: 1\nb\nc: 2\n", "HL002", "3:1", "line 2"),
        ("a: \x01\n", "HL007", "1:4", "U+0001"),
        ("a: 1\nb: x\u2028y\n", "HL007", "2:5", "U+2028"),
        ('a: "\\0"\n', "HL007", "1:4", "U+0000"),
        ("a: \ud800\n", "HL007", "1:4", "U+D800"),
    ],
)
def test_what_is_refused_says_where_and_why(text: str, code: str, place: str, says: str) -> None:
    fault = one_fault(text)
    assert fault.code == code
    assert str(fault.place) == f"job.yaml:{place}"
    assert says in fault.message


def test_half_a_character_is_refused() -> None:
    assert one_fault('a: "\\ud800"\n').code == "HL007"


def test_a_backslash_in_double_quotes_gets_its_hint() -> None:
    assert "single quotes" in str(one_fault('a: "step (\\d+)"\n').hint)


def test_a_tab_that_is_no_indentation_is_text() -> None:
    assert parsed("a: |\n  x\ty\nb: 'x\ty'\n").data == {"a": "x\ty\n", "b": "x\ty"}


def test_other_lines_with_tabs_are_counted() -> None:
    assert "2 other lines" in str(one_fault("a:\n\tb: 1\n\tc: 2\n\td: 3\n").hint)


def test_faults_that_leave_the_data_readable_come_together() -> None:
    document, findings = parse_document('a: 1\na: 2\nb: !x 3\nc: "\\0"\nd: 4\n', "job.yaml")
    assert [finding.code for finding in findings] == ["HL003", "HL006", "HL007"]
    assert document is not None
    assert document.data["a"] == 1
    assert document.data["d"] == 4


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 100_000,
        "a: " + "{a: " * 50_000,
        "- " * 50_000,
        pytest.param("a: [" + "1," * 120_000 + "]", marks=pytest.mark.prove),
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)),
        "".join(f"a{i}: &a{i} [" + (f"*a{i - 1}" if i else "x") + "]\n" for i in range(500)),
    ],
    ids=["brackets", "braces", "dashes", "long", "laughs", "chain"],
)
def test_what_would_be_too_large_is_refused_in_time(text: str) -> None:
    begin = time.process_time()
    assert one_fault(text).code == "HL006"
    assert time.process_time() - begin < 30


def test_a_byte_order_mark_and_windows_lines_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: x\r\n")
    document, findings = read_document(path)
    assert findings == []
    assert document is not None
    assert document.data == {"a": 1, "b": "x"}
    assert document.places["b",] == Place(str(path), 2, 4)


# JSON writes controls as escapes; what else YAML forbids is not in these categories.
_texts = st.text(
    st.characters(exclude_categories=["Cc", "Cn", "Cs", "Zl", "Zp"]) | st.sampled_from("\n\t\x01\x1b\\\"'"), max_size=40
)
_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts
_data = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=12,
)


@given(data=st.dictionaries(_texts, _data, min_size=1, max_size=4))
def test_json_is_read_as_json(data: dict[str, Any]) -> None:
    document, findings = parse_document(json.dumps(data, ensure_ascii=False, indent=1), "job.json")
    assert findings == []
    assert document is not None
    assert document.data == data


@given(text=st.text() | st.text("ab0:{}[]-&*!|>'\"#%@`,?<~. \n\t\\"))
def test_no_text_at_all_breaks_it(text: str) -> None:
    document, findings = parse_document(text, "job.yaml")
    assert (document is None) <= bool(findings)
    for finding in findings:
        assert finding.place is not None
