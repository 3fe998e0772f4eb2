"""Requirements for a profile that others use: sources, their age, and nothing that belongs to one person."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import Document, KeyPath
from hpc_launch.sites.provenance import provenance
from hpc_launch.sites.search_path import ENDING

MAX_AGE_DAYS = {
    "node_classes": 1095,
    "fabric": 1095,
    "hosts": 1095,
    "detect": 1095,
    "queues": 270,
    "billing": 270,
    "account": 270,
    "paths": 270,
}
"""Number of days after which a group of facts should be checked again. Hardware rarely changes, limits change every few
months."""
MAX_SOFTWARE_AGE_DAYS = 180
"""The same for all other groups: modules, images, variables."""
FACT_KEYS = frozenset(
    "scheduler node_classes queues account billing pytorch sbatch srun rules launchers versions stacks options "
    "login_shell prelude env fabric paths caches internet network launch containers".split()
)
"""Keys of a profile that state facts about the system."""
PERSONAL_KEYS = frozenset({"account", "wckey", "mail-user"})
"""sbatch options, and a key of a job, that belong to one person or project."""
_HOME = re.compile(r"/(home|users|u)/(?!\$)[A-Za-z0-9_.-]+(/|\Z)")


def missing_sources(document: Document) -> Iterator[Finding]:
    """HL312 for missing information in a shared profile: its maintainer, and the source of each group."""
    sources = provenance(document)
    without_page = document.data.get("kind") == "base" or document.data.get("scheduler") == "local"
    required = ["contact"] if without_page else ["contact", "url", "status"]
    required += ["verified_on", "verified_by"] if document.data.get("status") == "verified" and not without_page else []
    for key in (key for key in required if not document.data.get(key)):
        yield Finding(
            FindingCode.UNSOURCED_FACTS,
            f"a shared profile requires `{key}`",
            document.places.get(()),
            "add it (see docs/writing-a-profile.md)",
        )
    for group in (key for key in document.data if key.rstrip("+-=").lstrip("+") in FACT_KEYS):
        fact = sources.fact((group.rstrip("+-=").lstrip("+"),))
        missing = [name for name in ("source", "as_of", "grade") if getattr(fact, name) is None]
        if missing:
            message = f"`{group}` is missing {', '.join(missing)}"
            yield Finding(
                FindingCode.UNSOURCED_FACTS,
                message,
                document.key_places.get((group,)),
                "set it at the top level, or for the group in `facts:`",
            )


def outdated_facts(document: Document, today: dt.date) -> Iterator[Finding]:
    """HL312 as a warning for each group of facts that should be checked again."""
    sources = provenance(document)
    for group in (key for key in document.data if key in FACT_KEYS):
        as_of = sources.fact((group,)).as_of
        day = _day(as_of) if as_of else None
        max_age = MAX_AGE_DAYS.get(group, MAX_SOFTWARE_AGE_DAYS)
        if day is not None and (today - day).days > max_age:
            message = f"`{group}` is as of {as_of}; such facts should be checked every {max_age} days"
            place = document.key_places.get((group,))
            yield Finding(FindingCode.UNSOURCED_FACTS, message, place, "check the facts and update `as_of`", "warning")


def _day(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def personal_settings(document: Document, stem: str) -> Iterator[Finding]:
    """HL321 for personal settings, and HL313 as a warning for raw shell lines."""
    name = document.data.get("name")
    if name is not None and name != stem:
        message = f"the profile `{name}` is in the file {stem}{ENDING}"
        yield Finding(
            FindingCode.PERSONAL_PROFILE,
            message,
            document.places.get(("name",)),
            "`--site` finds it by its file name: use the same name for both",
        )
    for path, text in _texts(document.data, ()):
        place = document.places.get(path)
        if path[-1] in PERSONAL_KEYS and path[:-1] and path[-2] in ("defaults", "sbatch", "add"):
            hint = "remove it; each user sets it in user.yaml: `sites: {NAME: {account: …}}`"
            yield Finding(
                FindingCode.PERSONAL_PROFILE,
                f"`{path[-1]}: {text}` is a personal setting in a shared profile",
                place,
                hint,
            )
        elif _HOME.search(text) and path[0] in ("paths", "caches", "containers", "defaults", "env", "prelude"):
            hint = "use `${home}` or `${user}`, or move it to user.yaml"
            yield Finding(
                FindingCode.PERSONAL_PROFILE, f"`{text}` looks like a personal home folder", place, hint, "warning"
            )
        if path[-1] == "raw" and isinstance(path[-2], int):
            hint = "use a typed step if possible, which is easier to review"
            yield Finding(FindingCode.UNTRUSTED_CODE, f"raw shell line `{text}`", place, hint, "warning")


def _texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _texts(child, (*path, key))
    if isinstance(value, str) and path:
        yield path, value
