"""What does not belong into a profile that others use: somebody's account, somebody's folders, a name of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.sites.search_path import ENDING
from hpc_launch.sites.trust import raw_lines
from hpc_launch.spec.document import Document, KeyPath

PERSONAL = frozenset({"account", "wckey", "mail-user"})
"""Options of sbatch, and a key of a job, that stand for one person or project."""
_HOME = re.compile(r"/(home|users|u)/(?!\$)[A-Za-z0-9_.-]+(/|\Z)")


def unshared(document: Document, stem: str) -> Iterator[Finding]:
    """HL321 for what is one person's, HL313 as a warning for raw lines, which count only where they are trusted."""
    name = document.data.get("name")
    if name is not None and name != stem:
        message = f"the profile is called `{name}`, and its file {stem}{ENDING}"
        yield Finding(
            FindingCode.PERSONAL_PROFILE,
            message,
            document.places.get(("name",)),
            "`--site` finds it by its file: call both alike",
        )
    for path, text in _texts(document.data, ()):
        place = document.places.get(path)
        if path[-1] in PERSONAL and path[:-1] and path[-2] in ("defaults", "sbatch", "add"):
            hint = "each user says his own, in user.yaml: `sites: {NAME: {account: …}}`"
            yield Finding(
                FindingCode.PERSONAL_PROFILE,
                f"`{path[-1]}: {text}` is somebody's own, in a profile for others",
                place,
                hint,
            )
        elif _HOME.search(text) and path[0] in ("paths", "caches", "containers", "defaults", "env", "prelude"):
            hint = "write `${home}` or `${user}`, or leave it to user.yaml"
            yield Finding(FindingCode.PERSONAL_PROFILE, f"`{text}` looks like somebody's home", place, hint, "warning")
    for path in raw_lines(document.data):
        message = "a raw line of shell counts only for those who trust this very revision"
        yield Finding(
            FindingCode.UNTRUSTED_SHELL,
            message,
            document.places.get(path),
            "use the typed steps, if they can say it",
            "warning",
        )


def _texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _texts(child, (*path, key))
    if isinstance(value, str) and path:
        yield path, value
