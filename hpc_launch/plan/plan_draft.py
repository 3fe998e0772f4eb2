"""The state while a plan is built: the resolved job, its size, its values as text for the script, and the findings."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from hpc_launch.base.findings import Finding, FindingCode, Place, Severity
from hpc_launch.base.patterns import SECRET_NAME, SECRET_VALUE
from hpc_launch.job.document import KeyPath, Origin
from hpc_launch.job.shell_text import CHECKPOINT, RUNTIME, Text, UnknownName, Var, interpolate, plain
from hpc_launch.sites.queues import NodeClass, Queue
from hpc_launch.sites.resolved import Resolved


class PlanDraft(Struct, frozen=True):
    """What the steps of `build` read, and where they add findings."""

    resolved: Resolved
    findings: list[Finding]

    def given(self, mapping: str) -> set[str]:
        """The keys of a mapping of the job that a layer sets."""
        held = self.resolved.merged.data.get(mapping)
        return {key for key, value in held.items() if value is not None} if isinstance(held, dict) else set()

    def fault(
        self, code: FindingCode, message: str, path: KeyPath, hint: str | None = None, severity: Severity = "error"
    ) -> None:
        """Add a finding at a value of the job."""
        self.fault_at(code, message, self.resolved.place(*path), hint, severity)

    def site_fault(self, code: FindingCode, message: str, path: KeyPath, hint: str) -> None:
        """Add a finding at a value of the site profile."""
        self.fault_at(code, message, self.resolved.site_origin(*path).place, hint)

    def fault_at(
        self, code: FindingCode, message: str, place: Place | None, hint: str | None, severity: Severity = "error"
    ) -> None:
        """Add a finding at a place."""
        self.findings.append(Finding(code, message, place, hint, severity))


class JobSize(Struct, frozen=True):
    """The size of the job. Memory is in MiB per node; None means not requested. Each value has its origin beside it."""

    queue_name: str
    queue: Queue
    node_class: NodeClass
    gpus_per_node: int
    gpus_origin: Origin
    processes_per_node: int
    cpus_per_node: int | None
    cpus_origin: Origin
    memory: int | None
    memory_origin: Origin
    time_s: int | None
    time_origin: Origin
    slots: tuple[int, ...] = ()
    """Processes of each host where hosts differ (`scheduler: ssh`); empty if each node has `processes_per_node`."""

    def processes(self, nodes: int) -> int:
        """The number of processes on the first `nodes` nodes."""
        return sum(self.slots[:nodes]) if self.slots else nodes * self.processes_per_node

    def gpus(self, nodes: int) -> int:
        """The number of GPUs of the first `nodes` nodes: where hosts differ, one for each of their slots."""
        slots = self.slots[:nodes] if self.gpus_per_node and len(set(self.slots)) > 1 else ()
        return sum(slots) + (nodes - len(slots)) * self.gpus_per_node


CONFIG = RUNTIME["strategy.config"]
"""The configuration file that the script writes for the strategy."""

LONGEST_WORD = 100_000
"""Longest argument or variable in bytes. Linux refuses more than 131072 (execve(2), MAX_ARG_STRLEN)."""


class ValueFiller(PlanDraft, frozen=True):
    """Converts values to text. Values that cannot be converted add a finding to `findings`."""

    def text(self, value: Any, path: KeyPath) -> Text:
        """The value as written in the file, with `${…}` filled."""
        written = value if isinstance(value, str) else self.resolved.merged.written.get(path, _spell(value))
        if len(written.encode("utf-8", "replace")) > LONGEST_WORD:
            message = f"the value exceeds {LONGEST_WORD} bytes, the most that a program can be passed"
            self.fault(FindingCode.VALUE_TOO_LONG, message, path, "write it to a file and pass the name of the file")
            return ("",)
        known = {**RUNTIME, **CHECKPOINT} if path[:2] == ("checkpoint", "resume") else RUNTIME
        text = self._filled(written, known, self.resolved.place(*path))
        if text is None:
            return ("",)
        filled = any(isinstance(part, str) and SECRET_VALUE.search(part) for part in text)
        if filled and not SECRET_VALUE.search(written):  # `text_checks` reports what the file itself says
            message = "the value looks like an access token and would be written to the script"
            self.fault(FindingCode.SECRET_IN_SCRIPT, message, path, "set a variable to it, and list that in `secrets:`")
        strategy = self.resolved.job.strategy
        if CONFIG in text and strategy.config is None:
            message = f"the strategy `{strategy.name}` has no configuration file"
            message = f"{message}, so `${{strategy.config}}` is not defined"
            hint = "use zero0 to zero3, or fsdp with `for: trainer`"
            if strategy.name == "fsdp":
                hint = "set `for: trainer`; with `for: accelerate` the configuration is passed in environment variables"
            self.fault(FindingCode.NO_STRATEGY_CONFIG, message, path, hint)
        return text if not self.resolved.role else _with_variables_of_roles(text)

    def site_text(self, value: Any, path: KeyPath) -> Text:
        """A value of the site profile as written in its file, with `${…}` filled."""
        written = value if isinstance(value, str) else self.resolved.profile.written.get(path, _spell(value))
        return self._filled(written, RUNTIME, self.resolved.site_origin(*path).place) or ("",)

    def _filled(self, written: str, known: Mapping[str, Var], place: Place | None) -> Text | None:
        """The text with `${…}` filled; None with a finding at its place where a name is unknown."""
        try:
            return interpolate(written, self.resolved.names, known, self.resolved.late)
        except UnknownName as unknown:
            hint = _known_names(unknown.name, self.resolved)
            self.fault_at(FindingCode.UNKNOWN_NAME, f"unknown variable `${{{unknown.name}}}`", place, hint)
        return None

    def can_fill(self, value: str) -> bool:
        """Whether every `${…}` in the text is known."""
        try:
            interpolate(value, self.resolved.names, RUNTIME, self.resolved.late)
        except UnknownName:
            return False
        return True

    def static(self, value: str, path: KeyPath) -> str:
        """Like `text`, for a value that must be known before the job starts."""
        text = self.text(value, path)
        known = plain(text)
        if known is None:
            named = {var: name for name, var in RUNTIME.items()}
            parts = (part for part in text if isinstance(part, Var))
            holes = ", ".join(f"${{{named.get(part, f'shell.{part.name}')}}}" for part in parts)
            message = f"{holes} is known only inside the job and cannot be used here"
            hint = "name a folder or file that exists before the job starts"
            self.fault(FindingCode.NAME_KNOWN_ONLY_IN_JOB, message, path, hint)
        return known or ""

    def file(self, value: str, path: KeyPath) -> str:
        """Like `static`, for a path: `~` is the home directory; relative paths start at the folder of the job file."""
        return self.absolute(self.static(value, path))

    def absolute(self, path: str) -> str:
        """The absolute path, relative to the folder of the job file."""
        home = self.resolved.names["home"]
        if path == "~" or path.startswith("~/"):
            path = home + path[1:]
        return os.path.normpath(os.path.join(self.resolved.job_folder, path))


OF_ROLE = re.compile(r"\$(ROLE_[A-Z0-9_]+)")
"""A variable of agent/role_process.py."""


def _with_variables_of_roles(text: Text) -> Text:
    """The text with `$ROLE_PORT` and the like, which no shell would replace, as variables."""
    parts: list[str | Var] = []
    for part in text:
        pieces = OF_ROLE.split(part) if isinstance(part, str) else [part]
        parts += [Var(str(piece)) if at % 2 else piece for at, piece in enumerate(pieces)]
    return tuple(part for part in parts if part != "") or ("",)


def _spell(value: Any) -> str:
    """A default value in YAML's spelling."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _known_names(name: str, resolved: Resolved) -> str:
    if name.startswith("env.") and (name[4:] in resolved.job.secrets or SECRET_NAME.search(name)):
        return f"{name[4:]} is a secret: write `secrets: [{name[4:]}]`, and let the program read the variable itself"
    if name.startswith("env."):
        return f"set {name[4:]} in this shell, or write the value here"
    if name.isidentifier() and name.isupper():
        return f"write `${{env.{name}}}` for its value in this shell, or `${{shell.{name}}}` for that in the job"
    for prefix in ("paths.", "strategy.", "parallel."):
        if name.startswith(prefix):
            known = sorted(key for key in resolved.names if key.startswith(prefix))
            return f"available: {', '.join(known)}" if known else f"nothing here sets a {prefix}NAME"
    if name in CHECKPOINT:
        return "use it under `checkpoint.resume`, which applies when a checkpoint exists"
    return (
        f"available: {', '.join(sorted(RUNTIME))}, paths.NAME, env.NAME, user, home; write `$${{` for a literal `${{`"
    )
