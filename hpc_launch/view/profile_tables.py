"""Site profiles as text: the list, and the differences between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hpc_launch.view.format_values import aligned, clean

if TYPE_CHECKING:
    from hpc_launch.site_tools.diff_profiles import Difference
    from hpc_launch.site_tools.list_profiles import ProfileSummary

HEADERS = ("NAME", "KIND", "STATUS", "GRADE", "AS OF", "LAYER", "TITLE")


def table(profiles: Sequence[ProfileSummary]) -> list[str]:
    """The list of profiles as aligned columns."""
    return aligned([HEADERS, *map(_texts, profiles)])


def _texts(one: ProfileSummary) -> tuple[str, ...]:
    return (one.name, one.kind, one.status, one.grade or "", one.as_of or "", one.layer, one.title)


def difference_lines(differences: Sequence[Difference]) -> Iterator[str]:
    """For each profile that differs: its changed keys with old and new value, and the changed script lines."""
    for one in differences:
        yield f"{clean(one.profile)}: {clean(one.note)}" if one.note else clean(one.profile)
        for change in one.changes:
            old = "" if change.old is None else f"- {clean(change.old)}"
            new = "" if change.new is None else f"+ {clean(change.new)}"
            yield f"  {clean(change.key)}"
            yield from (
                f"    {text}   {clean(where)}".rstrip()
                for text, where in ((old, change.old_origin), (new, change.new_origin))
                if text
            )
        for job, lines in one.scripts.items():
            yield f"  script of {clean(job)}"
            yield from (f"    {clean(line)}" for line in lines)
