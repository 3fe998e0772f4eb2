"""Origin of a value: the layer that set it and the position in its file, or the rule that produced it."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.base.findings import Place


class Origin(Struct, frozen=True):
    """`layer` is `default`, `site NAME`, `base NAME`, `user`, `job`, `--set` or `rule`.

    `note` is the reason of a rule, `fact` describes the source of a site fact, and `why` is the reason that the site
    gives.
    """

    layer: str
    place: Place | None = None
    note: str = ""
    fact: str = ""
    why: str = ""

    def short(self) -> str:
        """Short form for a comment in the script: file name and line, or the rule's reason."""
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
    """Origin of a value that no file sets: a rule of hpc-launch, with a short reason."""
    return Origin("rule", note=note)
