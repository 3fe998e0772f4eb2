"""The JSON schema takes what the reader takes, and says what an editor needs."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import jsonschema  # type: ignore[import-untyped]
import pytest
from msgspec import Meta, Struct

from docs.json_schema import DRAFT, json_schema
from hpc_launch.job.job import JobSpec
from hpc_launch.job.reader import read
from hpc_launch.job.yaml_source import parse_document
from hpc_launch.sites.profile import SiteProfile
from tests.job import test_reader
from tests.job.test_reader import Job

JOB = """
name: tiny-gpt
site: juwels
account: proj123
nodes: 2
time: 02:00:00
memory: 64G
launcher: torchrun
precision: bf16
script: train.py
args: {lr: 3e-4, steps: 1000, resume: true}
env: {OMP_NUM_THREADS: 8, GONE: null}
environment: {modules: [CUDA/12], venv: ~/venvs/train}
container: {image: pytorch-24.10}
retry:
checkpoint: {signal_before: 5m}
sbatch: {reservation: tutorial}
"""


class Tree(Struct, frozen=True, kw_only=True):
    """A type that holds
    itself."""

    children: dict[str, Tree] = {}
    limit: Annotated[int, Meta(extra={"unit": "time"}, description="How long.", examples=["5m"])] = 600
    kind: Annotated[Literal["a", "b"], Meta(title="Kind", extra_json_schema={"deprecated": True})] = "a"
    count: Annotated[int, Meta(ge=1, lt=9, multiple_of=2)]


def valid(schema: dict[str, Any], data: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(data))


@pytest.mark.parametrize("type_", [JobSpec, SiteProfile, Job, Tree])
def test_it_is_a_schema_of_draft_2020_12_and_plain_json(type_: type[Struct]) -> None:
    schema = json_schema(type_)
    assert schema["$schema"] == DRAFT
    assert "$id" not in schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema


def test_a_job_file_is_valid() -> None:
    document, findings = parse_document(JOB, "job.yaml")
    assert findings == []
    assert document is not None
    assert valid(json_schema(JobSpec), document.data)
    assert not valid(json_schema(JobSpec), {**document.data, "nodse": 2})
    assert not valid(json_schema(JobSpec), {**document.data, "time": "soon"})
    assert not valid(json_schema(JobSpec), {**document.data, "launcher": "torchrnu"})


def _samples(test: Any) -> list[str]:
    """The job texts of a parametrized test of the reader: its first argument."""
    return [arguments[0] for mark in test.pytestmark for arguments in mark.args[1]]


@pytest.mark.parametrize("text", _samples(test_reader.test_what_is_taken))
def test_what_the_reader_takes_is_valid(text: str) -> None:
    document, _ = parse_document("name: tiny\n" + text, "job.yaml")
    assert document is not None
    # A choice given as a number is the one leniency that the schema does not tell editors.
    if text != "level: 1":
        jsonschema.Draft202012Validator(json_schema(Job)).validate(document.data)


@pytest.mark.parametrize("text", _samples(test_reader.test_a_fault_says_where_what_and_how_to_mend_it))
def test_what_the_reader_refuses_is_not_valid(text: str) -> None:
    document, _ = parse_document("name: tiny\n" + text, "job.yaml")
    assert document is not None
    assert read(document, Job)[0] is None
    # JSON Schema cannot tell 2.0 from 2, nor see a zero or a bound in a time that is written as text.
    if text not in {"nodes: 2.0", "limits: {slow: 30s}"}:
        assert not valid(json_schema(Job), document.data)
