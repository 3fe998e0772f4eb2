"""Values of the job file as text for the script: numbers written out, `${…}` filled, `~` expanded, faults noted."""

from __future__ import annotations

import os.path
from typing import Any

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.sites.resolved import Resolved
from hpc_launch.spec.document import KeyPath
from hpc_launch.spec.shell_text import CHECKPOINT, RUNTIME, Text, UnknownName, Var, interpolate, plain
from hpc_launch.spec.strategy import Strategy

CONFIG = RUNTIME["strategy.config"]
"""The configuration that the script writes for the strategy."""

LONGEST_WORD = 100_000
"""Bytes of one argument or variable: Linux refuses more than 131072 (execve(2), MAX_ARG_STRLEN)."""


class ValueFiller(PlanDraft, frozen=True):
    """Turns values into text; what cannot be turned is a finding in `findings`."""

    def text(self, value: Any, path: KeyPath) -> Text:
        """The value as the file has it, with `${…}` filled."""
        written = value if isinstance(value, str) else self.resolved.merged.written.get(path, _spell(value))
        if len(written.encode("utf-8", "replace")) > LONGEST_WORD:
            message = f"a value of more than {LONGEST_WORD} bytes cannot be handed to a program"
            self.fault(FindingCode.VALUE_TOO_LONG, message, path, "put it into a file and hand over the file's name")
            return ("",)
        try:
            text = interpolate(written, self.resolved.names, _runtime(path), self.resolved.late)
        except UnknownName as unknown:
            hint = _known_names(unknown.name, self.resolved)
            self.fault(FindingCode.UNKNOWN_NAME, f"`${{{unknown.name}}}` is not known here", path, hint)
            return ("",)
        strategy = self.resolved.job.strategy
        if CONFIG in text and strategy.config is None:
            message = f"no configuration is written for the strategy `{strategy.name}`"
            self.fault(
                FindingCode.NO_STRATEGY_CONFIG,
                f"{message}: `${{strategy.config}}` names nothing",
                path,
                _configured(strategy),
            )
        return text

    def site_text(self, value: Any, path: KeyPath) -> Text:
        """A value of the site profile as its file has it, with `${…}` filled."""
        written = value if isinstance(value, str) else self.resolved.profile.written.get(path, _spell(value))
        try:
            return interpolate(written, self.resolved.names, RUNTIME, self.resolved.late)
        except UnknownName as unknown:
            hint = _known_names(unknown.name, self.resolved)
            self.site_fault(FindingCode.UNKNOWN_NAME, f"`${{{unknown.name}}}` is not known here", path, hint)
            return ("",)

    def can_fill(self, value: str) -> bool:
        """Whether each `${…}` of the text is known."""
        try:
            interpolate(value, self.resolved.names, RUNTIME, self.resolved.late)
        except UnknownName:
            return False
        return True

    def static(self, value: str, path: KeyPath) -> str:
        """As `text`, for what must be known before the job starts."""
        text = self.text(value, path)
        known = plain(text)
        if known is None:
            named = {var: name for name, var in RUNTIME.items()}
            parts = (part for part in text if isinstance(part, Var))
            holes = ", ".join(f"${{{named.get(part, f'shell.{part.name}')}}}" for part in parts)
            message = f"{holes} is known only inside the job and cannot stand here"
            self.fault(
                FindingCode.NAME_KNOWN_ONLY_IN_JOB,
                message,
                path,
                "name a folder or file that is there before the job starts",
            )
        return known or ""

    def file(self, value: str, path: KeyPath) -> str:
        """As `static`, for a file or folder: `~` is the home, a relative path starts at the job file's folder."""
        return self.absolute(self.static(value, path))

    def absolute(self, path: str) -> str:
        """An absolute path, from the job file's folder."""
        home = self.resolved.names["home"]
        if path == "~" or path.startswith("~/"):
            path = home + path[1:]
        return os.path.normpath(os.path.join(self.resolved.job_folder, path))


def _runtime(path: KeyPath) -> dict[str, Var]:
    """What only the job knows; where it goes on from a checkpoint, that too."""
    return {**RUNTIME, **CHECKPOINT} if path[:2] == ("checkpoint", "resume") else RUNTIME


def _spell(value: Any) -> str:
    """A value that no file spelt (a default) in YAML's spelling."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _configured(strategy: Strategy) -> str:
    if strategy.name == "fsdp":
        return "say `for: trainer`; with `for: accelerate` the environment says it all"
    return "use zero0 to zero3, or fsdp with `for: trainer`"


def _known_names(name: str, resolved: Resolved) -> str:
    if name.startswith("env."):
        return f"{name[4:]} is not set in this shell; set it, or write the value here"
    if name.startswith("paths."):
        known = sorted(key for key in resolved.names if key.startswith("paths."))
        return f"site {resolved.site.name} has {', '.join(known) if known else 'no paths'}"
    if name.startswith(("strategy.", "parallel.")):
        known = sorted(key for key in resolved.names if key.startswith(("strategy.", "parallel.")))
        hint = "known are strategy.config"
        return ", ".join([hint, *known]) if known else f"{hint}, and sizes that `strategy:` or `parallel:` says"
    if name in CHECKPOINT:
        return "it stands under `checkpoint.resume`, which counts where there is a checkpoint"
    return f"known are {', '.join(sorted(RUNTIME))}, paths.NAME, env.NAME, user, home; `$${{` is a literal `${{`"
