"""The types of what the verbs print with `--json`: docs/schema/output/VERB.schema.json is generated from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

State = Literal[
    "SUBMITTING", "PENDING", "STUCK", "STARTING", "RUNNING", "ENDING", "RETRYING",
    "COMPLETED", "FAILED", "STOPPED", "CANCELLED", "UNKNOWN",
]  # fmt: skip
Verdict = Literal["RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED", "CONTINUE", "STOP", "NONE"]
Source = Literal["end_record", "squeue", "sacct", "scontrol", "local", "ssh", "none"]


class _Output(Struct, forbid_unknown_fields=True):
    pass


class Submitted(_Output):
    """A submission."""

    run: str | None
    job_id: str | None
    script: str
    folder: str | None


class Cancelled(_Output):
    """A run that was to be cancelled."""

    run: str
    message: str


class Evidence(_Output):
    """A line that supports a diagnosis."""

    file: str
    line: int
    text: str


class Attempt(_Output):
    """An attempt of a run."""

    number: int
    job_id: str | None
    state: str
    exit_code: int | None
    nodes: list[str]
    submitted: float | None
    started: float | None
    ended: float | None
    verdict: Verdict | None
    evidence: list[Evidence]
    overrides: dict[str, list[str]]
    failure_class: str | None = field(name="class")


class Progress(_Output):
    """Progress by the training's log."""

    step: int | None
    total: int | None
    loss: float | None
    rate: float | None
    eta_s: float | None


class Successor(_Output):
    """The job that waits to take over."""

    job_id: str
    state: str


class Time(_Output):
    """Seconds by category."""

    queued: float
    starting: float
    training: float
    repeated: float
    checkpointing: float
    stalled: float
    detecting: float
    restarting: float
    ending: float


class _Run(_Output):
    run: str
    name: str
    site: str
    state: State
    reason: str | None
    job_id: str | None
    state_source: Source
    state_age_s: float | None
    progress: Progress


class _MoreOfRun(_Run):
    hosts: list[str] | UnsetType = UNSET
    successor: Successor | UnsetType = UNSET
    phase: str | UnsetType | None = UNSET
    waiting_for: list[str] | UnsetType = UNSET
    time: Time | UnsetType = UNSET
    starting_phases: dict[str, float] | UnsetType = UNSET


class ListedRun(_MoreOfRun):
    """A run as `list` shows it."""


class RunWithAttempts(_MoreOfRun, kw_only=True):
    """A run as `status` shows it."""

    attempts: list[Attempt]


class Finding(_Output):
    """An error or a warning about a file."""

    code: str
    severity: Literal["error", "warning"]
    message: str
    file: str | None
    line: int | None
    column: int | None
    hint: str | None


class Value(_Output):
    """A value with its origin."""

    kind: str
    key: str
    value: str
    layer: str
    file: str | None
    line: int | None
    note: str | None


class FirstFailure(_Output):
    """Who failed first."""

    node: str | None
    rank: int | None
    time: float | None


class Why(_Output):
    """A diagnosis."""

    level: Literal["scheduler", "infrastructure", "workload", "unknown"]
    cause: str | None
    verdict: Verdict
    confidence: Literal["high", "medium", "low"]
    first_failure: FirstFailure
    evidence: list[Evidence]
    also: list[str]
    advice: str | None
    failure_class: str = field(name="class")
    time: Time | UnsetType = UNSET
    starting_phases: dict[str, float] | UnsetType = UNSET
    checkpoint_interval: dict[str, Any] | UnsetType | None = UNSET
    start: str | UnsetType | None = UNSET
    state: State | UnsetType | None = UNSET
    remarks: list[dict[str, Any]] | UnsetType = UNSET


class Profile(_Output):
    """A site profile in the list."""

    name: str
    kind: Literal["system", "template", "base"]
    title: str | None
    grade: str | None
    as_of: str | None
    status: str
    layer: str


class Match(_Output):
    """A profile that matches this machine."""

    site: str
    way: str
    because: str


class Detected(_Output):
    """The detected site."""

    site: str | None
    file: str | None
    way: str | None
    because: str | None
    matches: list[Match]
    cluster: str | None
    unreachable: str | None
    hint: str | None
    unread: list[dict[str, str]]


class Change(_Output):
    """A key that differs between two profiles."""

    key: str
    old: Any
    new: Any
    old_origin: str | None
    new_origin: str | None


class ProfileDifference(_Output):
    """How two profiles differ."""

    profile: str
    changes: list[Change]
    scripts: dict[str, list[str]]
    note: str | None


class BadNode(_Output):
    """A node recorded as bad."""

    node: str
    count: int
    avoided: bool
    expires: float
    notes: list[dict[str, Any]]


class Level(_Output):
    """A level of `doctor`."""

    name: str
    state: Literal["ok", "failed", "not checked"]
    lines: list[str]
    run: str | None
    values: dict[str, Any] | None


class ImageCheck(_Output):
    """A check of an image."""

    name: str
    level: Literal["ok", "warn", "fail", "skip"]
    message: str
    hint: str | None


OUTPUTS: dict[str, Any] = {
    "submit": Submitted,
    "resubmit": Submitted,
    "cancel": list[Cancelled],
    "status": RunWithAttempts | list[RunWithAttempts],
    "list": list[ListedRun],
    "validate": list[Finding],
    "explain": list[Value],
    "why": Why,
    "doctor": list[Level],
    "nodes list": list[BadNode],
    "sites list": list[Profile],
    "sites detect": Detected,
    "sites show": list[Value],
    "sites diff": list[ProfileDifference],
    "containers check": list[ImageCheck],
}
"""By verb."""


def checked(verb: str, value: Any) -> Any:
    """Return the value of `VERB --json` if it has no other fields than documented. Raises ValidationError."""
    msgspec.convert(value, OUTPUTS[verb])
    return value


def output_file(verb: str) -> Path:
    """The file of a verb's schema."""
    return Path(__file__).parent / "schema" / "output" / f"{verb.replace(' ', '-')}.schema.json"


def output_schema(verb: str) -> dict[str, Any]:
    """The schema of a verb's output (JSON Schema 2020-12). It allows further fields: a later release may add some."""
    found = msgspec.json.schema(OUTPUTS[verb])
    for part in found.get("$defs", {}).values():
        part.pop("additionalProperties", None)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"hpc-launch {verb} --json"}
    return head | found
