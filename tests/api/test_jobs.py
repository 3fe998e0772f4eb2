"""`hl.Job`: the keys of a job file, the file that does the same, and errors with code, place and hint."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import hpc_launch as hl
from hpc_launch.job.job import JobSpec
from hpc_launch.job.type_hints import fields_of, members

KEYS: dict[str, Any] = {
    "name": "described",
    "site": "local",
    "launcher": "none",
    "script": Path("train.py"),
    "time": timedelta(minutes=5),
    "nodes": 1,
    "hang": False,
    "args": {"lr": 3e-4, "text": "yes", "zero": "0123", "quoted": 'it\'s "1.10"\n# no comment: {', "none": None},
    "env": {"A": 1.5, "B": True, "C": "é\u2028\x1b[31m"},
    "secrets": (),
    "sweep": None,
}


def test_a_job_and_its_file_have_the_same_script(project: Path) -> None:
    job = hl.Job(**KEYS)
    assert job.to_yaml("described.yaml") == (project / "described.yaml").read_text()

    def commands(script: str) -> str:
        return re.sub(r"(?m)^ *#(?!SBATCH).*|(?<= )# .*", "", script)  # comments name the place of each value

    assert commands(hl.render(job)) == commands(hl.render("described.yaml"))
    assert hl.validate(job) == hl.validate("described.yaml") == []
    assert eval(repr(job), {"Job": hl.Job}).to_yaml() == job.to_yaml()


def examples(kind: type[Struct]) -> Iterator[tuple[str, Any]]:
    for key, field in fields_of(kind).items():
        for meta in (meta for member in members(field.type) for meta in member.metas):
            yield from ((key, example) for example in meta.examples or ())


@pytest.mark.parametrize(("key", "example"), list(examples(JobSpec)), ids=str)
def test_every_example_of_the_job_file_is_a_keyword(project: Path, key: str, example: Any) -> None:
    assert hl.Job(**{"name": "example", key: example}).to_yaml().startswith("name: example\n" if key != "name" else "")


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert "args:\n  lr: 0.5\n" in hl.Job(name="x", args={"lr": Fraction(1, 2)}).to_yaml()


def test_relative_paths_start_where_the_job_was_described(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, elsewhere = (
        hl.Job(name="x", site="local", script="train.py", launcher="none", time=5),
        hl.Job("/tmp", name="x"),
    )
    monkeypatch.chdir("/")
    assert str(project) in hl.render(job)
    job.to_yaml("x.yaml")
    assert (project / "x.yaml").exists()
    assert elsewhere.folder == Path("/tmp")
    with pytest.raises(hl.UsageError, match="where relative paths of the job start") as error:
        job.to_yaml("/tmp/x.yaml")
    assert "Job('/tmp'" in (error.value.hint or "")


FAULTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "unknown key": ({"nodess": 2}, "HL010", "Job.nodess", "did you mean `nodes`?"),
    "unknown key inside": ({"hang": {"afer": "5m"}}, "HL010", "Job.hang.afer", "did you mean `after`?"),
    "wrong type": ({"nodes": [1]}, "HL011", "Job.nodes", "For example `nodes: 4`"),
    "out of range": ({"nodes": 0}, "HL013", "Job.nodes", "Number of nodes"),
    "no unit": ({"hang": {"after": 30}}, "HL011", "Job.hang.after", "Stop the job as hanging"),
    "no value of a file": ({"args": {"model": object()}}, "HL011", "Job.args.model", "give text, a number"),
    "in a list": ({"secrets": ["A", {1}]}, "HL011", "Job.secrets[1]", "give text, a number"),
}


@pytest.mark.parametrize(("keys", "code", "place", "hint"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_key_is_refused_at_once(keys: dict[str, Any], code: str, place: str, hint: str) -> None:
    with pytest.raises(hl.Refused) as error:
        hl.Job(**{"name": "x", **keys})
    assert (error.value.code, str(error.value.place)) == (code, place)
    assert hint in (error.value.hint or "")
    assert any(hint in note for note in error.value.__notes__)  # what Python prints below a traceback


def test_errors_of_a_file_keep_their_code_and_place(project: Path) -> None:
    (project / "job.yaml").write_text("name: x\nsite: local\nscript: train.py\nnodes: many\ntime: 5\n")
    with pytest.raises(hl.Refused) as error:
        hl.submit("job.yaml")
    assert (error.value.code, str(error.value.place)) == ("HL011", "job.yaml:4:8")
    assert [finding.code for finding in hl.validate("job.yaml")] == ["HL011"]
    assert not os.path.exists(os.environ["HPC_LAUNCH_HOME"])


@pytest.mark.parametrize(
    "set_", [{"workdir": "/tmp", "args.lr": 1e-4}, ["workdir=/tmp", "args.lr=0.0001"]], ids=["dict", "list"]
)
def test_set_replaces_values(project: Path, set_: Any) -> None:
    values = {value.key: value for value in hl.explain("job.yaml", site="local", set=set_)}
    assert "/tmp" in str(values["workdir"])
    assert "0.0001" in str(values["args.lr"])


def test_an_error_reaches_another_process_whole() -> None:
    with pytest.raises(hl.Refused) as error:
        hl.Job(name="x", nodes=0)
    copy = pickle.loads(pickle.dumps(error.value))
    assert (type(copy), copy.findings, copy.hint, str(copy)) == (
        hl.Refused, error.value.findings, error.value.hint, str(error.value),
    )  # fmt: skip
    elsewhere = pickle.loads(pickle.dumps(hl.RunElsewhere("@last", Path("/run"), "n1")))
    assert (elsewhere.host, elsewhere.hint) == ("n1", "run the command there, with /run")
