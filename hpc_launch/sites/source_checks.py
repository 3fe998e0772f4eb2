"""What a profile to be shared must say about its sources, and how long facts last: for those who check profiles."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.sites.provenance import provenance
from hpc_launch.spec.document import Document

LASTS = {
    "node_classes": 1095,
    "fabric": 1095,
    "hosts": 1095,
    "detect": 1095,
    "queues": 270,
    "account": 270,
    "paths": 270,
}
"""Days after which a group of facts should be looked at again; hardware lasts, limits change in months."""
SOFTWARE_LASTS = 180
"""The same for all other groups: modules, images, variables."""
FACTUAL = frozenset(
    "scheduler node_classes queues account sbatch srun rules launchers versions stacks options login_shell prelude env "
    "fabric paths caches internet network launch containers".split()
)
"""Keys of a profile that state facts of the system."""


def unsourced(document: Document) -> Iterator[Finding]:
    """HL312 for each thing that a profile to be shared must say and does not: who keeps it, and each group's source."""
    known = provenance(document)
    no_page = document.data.get("kind") == "base" or document.data.get("scheduler") == "local"
    wanted = ["contact"] if no_page else ["contact", "url", "status"]
    wanted += ["verified_on", "verified_by"] if document.data.get("status") == "verified" and not no_page else []
    for key in (key for key in wanted if not document.data.get(key)):
        yield Finding(
            FindingCode.UNSOURCED_FACTS,
            f"a shared profile needs `{key}`",
            document.places.get(()),
            "see docs/writing-a-profile.md",
        )
    for group in (key for key in document.data if key.rstrip("+-=").lstrip("+") in FACTUAL):
        fact = known.fact((group.rstrip("+-=").lstrip("+"),))
        missing = [name for name in ("source", "as_of", "grade") if getattr(fact, name) is None]
        if missing:
            message = f"`{group}` has no {', no '.join(missing)}"
            yield Finding(
                FindingCode.UNSOURCED_FACTS,
                message,
                document.key_places.get((group,)),
                "say it for all, or for the group in `facts:`",
            )


def aged(document: Document, today: dt.date) -> Iterator[Finding]:
    """HL312 as a warning for each group of facts that is older than such facts last."""
    known = provenance(document)
    for group in (key for key in document.data if key in FACTUAL):
        as_of = known.fact((group,)).as_of
        day = _day(as_of) if as_of else None
        lasts = LASTS.get(group, SOFTWARE_LASTS)
        if day is not None and (today - day).days > lasts:
            message = f"`{group}` is as of {as_of}; such facts last about {lasts} days"
            place = document.key_places.get((group,))
            yield Finding(
                FindingCode.UNSOURCED_FACTS, message, place, "look them up again, and say the new day", "warning"
            )


def _day(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None
