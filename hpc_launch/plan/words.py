"""Values of the job file as text for the script: numbers written out, `${…}` filled, `~` expanded, faults noted."""

from __future__ import annotations

import os.path
from typing import Any

from hpc_launch.plan.draft import Draft
from hpc_launch.sites.resolved import Resolved
from hpc_launch.spec.merge import Path as KeyPath
from hpc_launch.spec.text import RUNTIME, Text, UnknownName, interpolate, plain

LONGEST_WORD = 100_000
"""Bytes of one argument or variable: Linux refuses more than 131072 (execve(2), MAX_ARG_STRLEN)."""


class Words(Draft, frozen=True):
    """Turns values into text; what cannot be turned is a finding in `findings`."""

    def text(self, value: Any, path: KeyPath) -> Text:
        """The value as the file has it, with `${…}` filled."""
        written = value if isinstance(value, str) else self.resolved.merged.written.get(path, _spell(value))
        if len(written.encode("utf-8", "replace")) > LONGEST_WORD:
            message = f"a value of more than {LONGEST_WORD} bytes cannot be handed to a program"
            self.fault("HL205", message, path, "put it into a file and hand over the file's name")
            return ("",)
        try:
            return interpolate(written, self.resolved.names)
        except UnknownName as unknown:
            hint = _known_names(unknown.name, self.resolved)
            self.fault("HL206", f"`${{{unknown.name}}}` is not known here", path, hint)
            return ("",)

    def static(self, value: str, path: KeyPath) -> str:
        """As `text`, for what must be known before the job starts."""
        text = self.text(value, path)
        known = plain(text)
        if known is None:
            holes = ", ".join(f"${{{name}}}" for name, var in RUNTIME.items() if var in text)
            message = f"{holes} is known only inside the job and cannot stand here"
            self.fault("HL207", message, path, "name a folder or file that is there before the job starts")
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


def _spell(value: Any) -> str:
    """A value that no file spelt (a default) in YAML's spelling."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _known_names(name: str, resolved: Resolved) -> str:
    if name.startswith("env."):
        return f"{name[4:]} is not set in this shell; set it, or write the value here"
    if name.startswith("paths."):
        known = sorted(key for key in resolved.names if key.startswith("paths."))
        return f"site {resolved.site.name} has {', '.join(known) if known else 'no paths'}"
    return f"known are {', '.join(sorted(RUNTIME))}, paths.NAME, env.NAME, user, home; `$${{` is a literal `${{`"
