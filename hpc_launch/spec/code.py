"""`code:` of a job file: whether the run keeps a copy of the training's code."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.spec.field_types import Mebibytes


class Code(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The copy of the code that all attempts of a run use, so that an edit in between changes none of them."""

    snapshot: Annotated[
        Literal["auto", "off"],
        Meta(
            description="`auto`: the folder of a `script:` is copied into the run folder at submission, and the script "
            "runs from there; the work folder stays. `off`: the script runs from where it lies."
        ),
    ] = "auto"
    exclude: Annotated[
        list[str],
        Meta(
            description="Names of files and folders, with `*`, that are linked instead of copied.",
            examples=[["data", "*.bin"]],
        ),
    ] = []
    limit: Annotated[
        Mebibytes, Meta(description="Nothing is copied where it comes to more than this. Larger files are linked.")
    ] = 100

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`code: off` or `code: auto`."""
        if value is False:
            return {"snapshot": "off"}
        return {"snapshot": value} if isinstance(value, str) else None
