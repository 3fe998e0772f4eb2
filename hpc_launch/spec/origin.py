"""Where a value comes from: the layer that set it, and the place in its file, or the rule that made it."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.base.findings import Place


class Origin(Struct, frozen=True):
    """`layer` is `default`, `site NAME`, `user`, `job`, `--set` or `rule`; a rule says its reason in `note`."""

    layer: str
    place: Place | None = None
    note: str = ""

    def short(self) -> str:
        """For a comment in the script: the file's base name and line, or the rule's reason."""
        if self.note:
            return self.note
        if self.place is None:
            return self.layer
        name = self.place.file.rsplit("/", 1)[-1]
        return name if self.place.line is None else f"{name}:{self.place.line}"

    def __str__(self) -> str:
        place = f" {self.place}" if self.place else ""
        note = f" ({self.note})" if self.note else ""
        return f"[{self.layer}]{place}{note}"


def rule(note: str) -> Origin:
    """The origin of what no file says: a rule of the tool, with its reason in a few words."""
    return Origin("rule", note=note)
