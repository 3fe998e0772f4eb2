"""A job described in Python: `Job`, with the keys of a job file."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from datetime import timedelta
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import write_output
from hpc_launch.base.findings import Finding, FindingCode, Place, errors
from hpc_launch.job.document import Document, KeyPath, yaml_text
from hpc_launch.job.job import JobSpec
from hpc_launch.job.job_file import GivenJob, JobSource
from hpc_launch.job.merge import parse_operators
from hpc_launch.job.reader import check
from hpc_launch.job.type_hints import fields_of, label
from hpc_launch.job.yaml_source import parse_document

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hpc_launch.api.job_keys import JobKeys


def _signature() -> inspect.Signature:
    """What notebooks complete: each key of the job file."""
    folder = inspect.Parameter("folder", inspect.Parameter.POSITIONAL_ONLY, default=None)
    keys = (inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in fields_of(JobSpec))
    return inspect.Signature([folder, *keys])


class Job:
    """A training job. Its keywords are the keys of a job file (docs/reference/job-file.md), with the same values.

        Job(name="tiny-gpt", script="train.py", nodes=8, time="02:00:00", args={"lr": 3e-4})

    A path may be a `Path`, a time or a duration a `timedelta`. What is not given comes from the site and the user's
    own defaults, as for a file. Relative paths start at `folder`, by default the current folder.

    Raises:
        Refused: An unknown key, or a value of the wrong type or out of range.
    """

    __signature__ = _signature()

    def __init__(self, folder: str | os.PathLike[str] | None = None, /, **keys: Unpack[JobKeys]) -> None:
        self.folder = Path(os.path.abspath(folder or os.getcwd()))
        findings: list[Finding] = []
        self.data = plain(keys, "Job")
        self.source = GivenJob(_document(self.data, findings), str(self.folder))
        layer, faults = parse_operators("job", self.source.document, {(): JobSpec})
        findings += faults or check(layer, JobSpec)
        if errors(findings):
            raise Refused(findings)

    def replace(self, **keys: Any) -> Job:
        """The same job with other values of these keys. Raises as `Job`."""
        return Job(self.folder, **{**self.data, **keys})

    def to_yaml(self, path: str | os.PathLike[str] | None = None) -> str:
        """The text of a job file that does the same. With `path`, relative to `folder`, also writes it.

        Raises:
            UsageError: The file is in another folder, where relative paths would mean others; or it cannot be written.
        """
        if path is not None:
            file = Path(os.path.abspath(self.folder / path))
            if os.path.realpath(file.parent) != os.path.realpath(self.folder):
                hint = f"for a file there, describe the job with Job({str(file.parent)!r}, …)"
                raise UsageError(f"{file} is not in {self.folder}, where relative paths of the job start", hint)
            try:
                write_output(file, self.source.document.text)
            except OSError as error:
                raise UsageError(f"cannot write {file}: {error.strerror}", "name another file") from error
        return self.source.document.text

    def __repr__(self) -> str:
        return f"Job({', '.join(f'{key}={value!r}' for key, value in self.data.items())})"


def source_of(job: Job | str | os.PathLike[str]) -> JobSource:
    """A job file, or a described job."""
    return job.source if isinstance(job, Job) else Path(job)


def plain(values: Mapping[Any, Any], what: str) -> dict[str, Any]:
    """Values as a job file has them. Raises Refused for one that it cannot have; `what` is the argument with them."""
    findings: list[Finding] = []
    found: dict[str, Any] = _plain(values, (), what, findings)
    if findings:
        raise Refused(findings)
    return found


def _plain(value: Any, path: KeyPath, what: str, findings: list[Finding]) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(child, (*path, str(key)), what, findings) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child, (*path, at), what, findings) for at, child in enumerate(value)]
    if isinstance(value, timedelta):
        return f"{int(value.total_seconds())}s"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str | bool | None):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Integral | Real):  # NumPy's numbers are such, too
        return int(value) if isinstance(value, Integral) else float(value)
    message = f"`{label(path)}` has the Python type {type(value).__name__}, which a job file has no value for"
    hint = "give text, a number, a truth value, a list or a mapping"
    findings.append(Finding(FindingCode.WRONG_TYPE, message, Place(f"{what}.{label(path)}"), hint))
    return None


def _document(data: dict[str, Any], findings: list[Finding]) -> Document:
    """The job as its file would be read; the places are keys of `Job`."""
    document, faults = parse_document(yaml_text(data, {}, ()) if data else "{}\n", "Job")
    findings += faults
    if document is None:
        raise Refused(findings)
    places = {path: Place(f"Job.{label(path)}") for path in document.places if path}
    return Document(document.data, places, places, document.written, document.text)
