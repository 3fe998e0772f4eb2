"""Data against Struct types: what is taken, all faults with code, place and hint, and a JSON schema that agrees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from docs.json_schema import json_schema
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import Document
from hpc_launch.job.reader import check, read
from hpc_launch.job.type_hints import fields_of
from hpc_launch.job.yaml_source import parse_document

Seconds = Annotated[int, Meta(extra={"unit": "time"})]
Span = Annotated[int, Meta(extra={"unit": "duration"})]
Mebibytes = Annotated[int, Meta(extra={"unit": "memory"})]


class Step(Struct, frozen=True, kw_only=True):
    name: Annotated[Literal["torchrun", "srun"], Meta(description="Who starts the processes.")] = "torchrun"
    options: list[str] = []

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        if isinstance(value, str):
            return {"name": value}
        return {"options": value} if isinstance(value, list) else None


class Image(Struct, frozen=True, kw_only=True):
    image: Annotated[str, Meta(description="The image.")]
    step: Step = Step()

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        return {"image": value, "step": "srun"} if isinstance(value, (str, int, float)) else None


class Limits(Struct, frozen=True, kw_only=True):
    pair: tuple[int, int] = (1, 2)
    row: tuple[str, ...] = ()
    even: Annotated[int, Meta(multiple_of=2, gt=0, lt=100)] = 2
    short: Annotated[list[int], Meta(min_length=1, max_length=2)] = msgspec.field(default_factory=lambda: [1])
    keyed: dict[Annotated[str, Meta(pattern="^[A-Z]+$")], int] = {}
    slow: Annotated[Seconds, Meta(ge=60)] = 60


class Job(Struct, frozen=True, kw_only=True):
    name: Annotated[
        str, Meta(description="What it is called.", pattern=r"^[a-z][a-z0-9-]*$", max_length=8, examples=["tiny"])
    ]
    nodes: Annotated[int, Meta(description="How many nodes.", ge=1, le=99)] = 1
    gpus_per_node: Annotated[int | None, Meta(description="GPUs on each.", ge=0)] = None
    ratio: Annotated[float, Meta(ge=0, le=1)] = 0.5
    exclusive: bool = False
    account: str | None = None
    time: Annotated[Seconds | None, Meta(description="Time limit.", examples=["02:00:00"])] = None
    warn: Span | None = None
    memory: Mebibytes | None = None
    launcher: Step = Step()
    container: Image | None = None
    precision: Literal["bf16", "fp16"] | None = None
    level: Literal["1", "2", "auto"] = "auto"
    args: dict[str, Any] | list[str | int | float | bool | None] = {}
    env: dict[str, str | int | float | bool | None] = {}
    paths: dict[str, str] = {}
    exclude: list[str] = []
    command: str | list[str] | None = None
    limits: Limits = Limits()
    others: dict[str, Step] = {}
    dashed: int = msgspec.field(default=0, name="with-dash")


SCHEMA = jsonschema.Draft202012Validator(json_schema(Job))


def document(text: str) -> Document:
    parsed, findings = parse_document(text, "job.yaml")
    assert findings == []
    assert parsed is not None
    return parsed


def job(text: str) -> Job:
    value, findings = read(document("name: tiny\n" + text), Job)
    assert findings == []
    assert value is not None
    return value


def faults(text: str) -> list[Finding]:
    value, findings = read(document("name: tiny\n" + text), Job)
    assert value is None
    return findings


def fault(text: str) -> Finding:
    found = faults(text)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("nodes: 4", "nodes", 4),
        ("nodes:", "nodes", 1),
        ("gpus_per_node:", "gpus_per_node", None),
        ("gpus_per_node: 0", "gpus_per_node", 0),
        ("ratio: 1", "ratio", 1.0),
        ("ratio: 1e-3", "ratio", 1e-3),
        ("exclusive: TRUE", "exclusive", True),
        ("account: 0123", "account", "0123"),
        ("account: 1.10", "account", "1.10"),
        ("account: 1e5", "account", "1e5"),
        ("account: True", "account", "True"),
        ("account: no", "account", "no"),
        ("account: ''", "account", ""),
        ("account: 2024-01-01", "account", "2024-01-01"),
        ("time: 24:00:00", "time", 86_400),
        ("time: 90", "time", 5400),
        ("time: '90'", "time", 5400),
        ("time: 1d12h", "time", 129_600),
        ("warn: 5m", "warn", 300),
        ("warn: 0", "warn", 0),
        ("memory: 64G", "memory", 65_536),
        ("memory: 0", "memory", 0),
        ("memory: 512", "memory", 512),
        ("launcher: srun", "launcher", Step(name="srun")),
        ("launcher: [-v, 3]", "launcher", Step(options=["-v", "3"])),
        ("launcher: {options: [1.10]}", "launcher", Step(options=["1.10"])),
        ("launcher:", "launcher", Step()),
        ("container: a.sif", "container", Image(image="a.sif", step=Step(name="srun"))),
        ("container: 1.10", "container", Image(image="1.10", step=Step(name="srun"))),
        ("precision: bf16", "precision", "bf16"),
        ("level: 1", "level", "1"),
        ("args: {lr: 3e-4, more: {a: [1, x]}}", "args", {"lr": 3e-4, "more": {"a": [1, "x"]}}),
        ("args: [a, 1, 2.5, true, null]", "args", ["a", 1, 2.5, True, None]),
        ("env: {A: 8, B: null, C: x}", "env", {"A": 8, "B": None, "C": "x"}),
        ("paths: {a: 7, b: null}", "paths", {"a": "7"}),
        ("exclude: [1, n2, 03]", "exclude", ["1", "n2", "03"]),
        ("command: a b", "command", "a b"),
        ("command: [a, b]", "command", ["a", "b"]),
        ("limits: {pair: [3, 4], row: [a, 5]}", "limits", Limits(pair=(3, 4), row=("a", "5"))),
        ("limits: {keyed: {AB: 1}}", "limits", Limits(keyed={"AB": 1})),
        ("others: {a: srun, b: {name: torchrun}}", "others", {"a": Step(name="srun"), "b": Step()}),
        ("with-dash: 3", "dashed", 3),
    ],
)
def test_what_is_taken(text: str, field: str, value: object) -> None:
    got = getattr(job(text), field)
    assert got == value
    assert type(got) is type(value)
    if text != "level: 1":  # a choice given as a number: the one leniency that the schema does not tell editors
        SCHEMA.validate(document("name: tiny\n" + text).data)


@pytest.mark.parametrize(
    ("text", "code", "place", "message", "hint"),
    [
        ("nodse: 2", "HL010", "2:1", "unknown key `nodse`", "did you mean `nodes`?"),
        ("gpus-per-node: 2", "HL010", "2:1", "unknown key `gpus-per-node`", "did you mean `gpus_per_node`?"),
        ("launcher: {nane: x}", "HL010", "2:12", "unknown key `nane` in `launcher`", "did you mean `name`?"),
        ("options: [a]", "HL010", "2:1", "unknown key `options`", "move it under `launcher`"),
        (
            "launcher: {nodes: 2}",
            "HL010",
            "2:12",
            "unknown key `nodes` in `launcher`",
            "to the top level: check the indentation",
        ),
        ("launcher: {zzz: 2}", "HL010", "2:12", "unknown key `zzz` in `launcher`", "valid keys: name, options"),
        ("dashed: 2", "HL010", "2:1", "unknown key `dashed`", "with-dash"),
        ("nodes: two", "HL011", "2:8", "`nodes` must be a whole number, not the text 'two'", None),
        ("nodes: '2'", "HL011", "2:8", "not the text '2'", "remove the quotes"),
        ("nodes: 02", "HL011", "2:8", "not the text '02'", "remove the leading zeros"),
        ("nodes: 2.0", "HL011", "2:8", "not the number 2.0", "write 2"),
        ("nodes: 1.5", "HL011", "2:8", "not the number 1.5", None),
        ("nodes: true", "HL011", "2:8", "not true", None),
        ("nodes: [2]", "HL011", "2:8", "not a list", None),
        ("nodes: {a: 2}", "HL011", "2:8", "not a mapping", None),
        ("ratio: .nan", "HL011", "2:8", "must be a number, not the text '.nan'", None),
        (f"ratio: 1{'0' * 400}", "HL011", "2:8", "`ratio` is too large", None),
        ("exclusive: yes", "HL011", "2:12", "must be true or false, not the text 'yes'", "write true or false"),
        ("exclusive: 1", "HL011", "2:12", "must be true or false, not the number 1", None),
        ("account: [a]", "HL011", "2:10", "`account` must be text, not a list", None),
        ("time: soon", "HL011", "2:7", "`time`: 'soon' is not a valid time; write it as 02:00:00", None),
        ("time: 0", "HL011", "2:7", "no limit", None),
        ("time: 1.5", "HL011", "2:7", "'1.5' is not a valid time", None),
        ("time: [1]", "HL011", "2:7", "must be a time such as 02:00:00", None),
        ("time: true", "HL011", "2:7", "must be a time such as 02:00:00", None),
        ("warn: 300", "HL011", "2:7", "has no unit", None),
        ("memory: lots", "HL011", "2:9", "is not a valid memory size", None),
        ("launcher: 3", "HL011", "2:11", "`launcher` must be a mapping, not the number 3", None),
        ("limits: pair:3", "HL011", "2:9", "must be a mapping", "space after the colon"),
        ("exclude: n1", "HL011", "2:10", "`exclude` must be a list, not the text 'n1'", "write a list"),
        ("exclude: [a, [b]]", "HL011", "2:14", "`exclude[1]` must be text, not a list", None),
        ("exclude: [a, ]\npaths: {a: [1]}", "HL011", "3:12", "`paths.a` must be text, not a list", None),
        ("exclude: [~]", "HL011", "2:11", "`exclude[0]` must be text, not empty", None),
        ("args: 5", "HL011", "2:7", "`args` must be a mapping or a list, not the number 5", None),
        ("env: {A: [1]}", "HL011", "2:10", "`env.A` must be text, a number, or true or false, not a list", None),
        ("command: {a: 1}", "HL011", "2:10", "`command` must be text or a list, not a mapping", None),
        ("container: {}", "HL012", "2:12", "`container.image` is missing", "The image."),
        ("container: {image: }", "HL012", "2:13", "`container.image` is missing", "The image."),
        ("nodes: 0", "HL013", "2:8", "`nodes` must be at least 1, not the number 0", "How many nodes."),
        ("nodes: 100", "HL013", "2:8", "`nodes` must be at most 99, not the number 100", "How many nodes."),
        ("gpus_per_node: -1", "HL013", "2:16", "must be at least 0", "GPUs on each."),
        ("precision: bf61", "HL013", "2:12", "must be one of `bf16`, `fp16`, not the text 'bf61'", "`bf16`?"),
        ("precision: 16", "HL013", "2:12", "must be one of `bf16`, `fp16`, not the number 16", None),
        ("launcher: torchrnu", "HL013", "2:11", "`launcher.name` must be one of", "did you mean `torchrun`?"),
        ("launcher: {name: x}", "HL013", "2:18", "`launcher.name` must be one of", None),
        ("limits: {pair: [1]}", "HL013", "2:16", "`limits.pair` must have 2 items, not 1", None),
        ("limits: {even: 3}", "HL013", "2:16", "must be a multiple of 2", None),
        ("limits: {even: 0}", "HL013", "2:16", "must be more than 0", None),
        ("limits: {even: 100}", "HL013", "2:16", "must be less than 100", None),
        ("limits: {short: []}", "HL013", "2:17", "must have at least 1 items, not a list", None),
        ("limits: {short: [1, 2, 3]}", "HL013", "2:17", "must have at most 2 items, not a list", None),
        ("limits: {keyed: {ab: 1}}", "HL013", "2:18", "the key `limits.keyed.ab` must match `^[A-Z]+$`", None),
        ("limits: {slow: 30s}", "HL013", "2:16", "`limits.slow` must be at least 00:01:00, not the text '30s'", None),
    ],
)
def test_a_fault_says_where_what_and_how_to_mend_it(
    text: str, code: str, place: str, message: str, hint: str | None
) -> None:
    found = fault(text)
    assert found.code == code
    assert str(found.place) == f"job.yaml:{place}"
    assert message in found.message
    assert (hint is None) or (hint in str(found.hint))
    # JSON Schema cannot tell 2.0 from 2, nor see a bound in a time that is written as text.
    agrees = not SCHEMA.is_valid(document("name: tiny\n" + text).data)
    assert agrees or text in {"nodes: 2.0", "limits: {slow: 30s}"}


def test_all_faults_of_a_file_come_at_once_in_its_order() -> None:
    found = faults("nodse: 2\nnodes: x\nlauncher: {name: y, z: 1}\nmemory: lots\nexclude: [[1], [2]]\n")
    assert [(one.code, one.place and one.place.line) for one in found] == [
        ("HL010", 2),
        ("HL011", 3),
        ("HL013", 4),
        ("HL010", 4),
        ("HL011", 5),
        ("HL011", 6),
        ("HL011", 6),
    ]


def test_a_missing_key_is_placed_at_what_lacks_it_with_an_example() -> None:
    value, [found] = read(document("# a job\nnodes: 2\n"), Job)
    assert value is None
    assert str(found) == "job.yaml:2:1: HL012 `name` is missing"
    assert found.hint == "What it is called. For example `name: tiny`"


@pytest.mark.parametrize("name", ['"tiny\\n"', "Tiny", "tiny job", "a" * 9, "٣"])
def test_a_pattern_holds_to_the_very_end(name: str) -> None:
    value, [found] = read(document(f"name: {name}\n"), Job)
    assert value is None
    assert found.code == "HL013"


def test_long_texts_are_cut_and_controls_made_visible() -> None:
    assert fault(f"nodes: {'x' * 100}").message.endswith("'" + "x" * 37 + "...'")
    assert "\\x1b" in fault('nodes: "\\e[1m"').message


def test_a_key_cannot_break_the_line_of_its_finding() -> None:
    assert fault('"a\\nb\\e[2J": 1').message == "unknown key `a\\u000ab\\u001b[2J`"


def test_a_layer_may_lack_keys_and_have_nulls() -> None:
    assert check(document("nodes: 2\npaths: {a: null}\nlauncher: null\ncontainer: {}\n"), Job) == []
    assert [one.code for one in check(document("nodse: 2\nnodes: 0\n"), Job)] == ["HL010", "HL013"]


_keys = st.sampled_from([*fields_of(Job), *fields_of(Step), *fields_of(Limits), "image", "step", "zzz"])
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["srun", "5m", "1G"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=10,
)


@given(data=st.dictionaries(_keys, _values, max_size=6))
def test_any_data_gives_a_value_or_errors(data: Mapping[str, Any]) -> None:
    source = Document(dict(data))
    value, findings = read(source, Job)
    assert (value is None) == bool(findings)
    assert {one.code for one in check(source, Job)} <= {one.code for one in findings}
    if value is not None:
        # msgspec's own check of the types agrees: what was built here is what the type says.
        assert isinstance(value, Job)
        assert isinstance(value.nodes, int)
        assert all(isinstance(item, str) for item in value.exclude)
