"""The JSON schema takes what the reader takes, and says what an editor needs."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from msgspec import Struct

from docs.json_schema import DRAFT, json_schema
from hpc_launch.job.job import JobSpec
from hpc_launch.job.reader import read
from hpc_launch.job.yaml_source import parse_document
from hpc_launch.sites.profile import SiteProfile
from tests.job import test_reader
from tests.job.test_reader import Job


def valid(schema: dict[str, Any], data: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(data))


@pytest.mark.parametrize("type_", [JobSpec, SiteProfile, Job])
def test_it_is_a_schema_of_draft_2020_12_and_plain_json(type_: type[Struct]) -> None:
    schema = json_schema(type_)
    assert schema["$schema"] == DRAFT
    assert "$id" not in schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema


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
