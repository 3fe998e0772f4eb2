"""Where a value comes from: the layer that set it, and the place in its file, or the rule that made it."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.base.findings import Place


class Origin(Struct, frozen=True):
    """`layer` is `default`, `site NAME`, `base NAME`, `user`, `job`, `--set` or `rule`.

    A rule says its reason in `note`. `fact` is what to know about the source of a fact of the site; `why` the reason
    that the site gives.
    """

    layer: str
    place: Place | None = None
    note: str = ""
    fact: str = ""
    why: str = ""

    def short(self) -> str:
        """For a comment in the script: the file's base name and line, or the rule's reason."""
        return "; ".join(part for part in (self._where(), self.fact, self.why) if part)

    def _where(self) -> str:
        if self.note:
            return self.note
        if self.place is None:
            return self.layer
        name = self.place.file.rsplit("/", 1)[-1]
        return name if self.place.line is None else f"{name}:{self.place.line}"

    def __str__(self) -> str:
        place = f" {self.place}" if self.place else ""
        notes = "; ".join(part for part in (self.note, self.fact, self.why) if part)
        return f"[{self.layer}]{place}{f' ({notes})' if notes else ''}"


def rule(note: str) -> Origin:
    """The origin of what no file says: a rule of the tool, with its reason in a few words."""
    return Origin("rule", note=note)
