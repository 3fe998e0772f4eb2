"""`code:` of a job file: the snapshot of the training's code."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.job.field_types import Mebibytes


class Code(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Snapshot of the code. All attempts of a run use it, so later edits do not affect them."""

    snapshot: Annotated[
        Literal["auto", "off"],
        Meta(
            description="`auto` copies the folder that contains `script` into the run folder at submission and "
            "runs the script from there. The working directory does not change. `off` runs the script "
            "from its original location."
        ),
    ] = "auto"
    exclude: Annotated[
        list[str],
        Meta(
            description="Names of files and folders to link instead of copying. `*` matches any text.",
            examples=[["data", "*.bin"]],
        ),
    ] = []
    limit: Annotated[
        Mebibytes,
        Meta(description="Maximum size of the snapshot. A larger folder is not copied; a larger file is linked."),
    ] = 100
    copy_workdir: Annotated[
        bool,
        Meta(
            description="On hosts that share no folders (`scheduler.shared_folders`): copy the working directory to "
            "each host, without caches, files that may hold secrets, and what `exclude` names. A folder larger than "
            "`limit` is refused. If false, each host must have it."
        ),
    ] = False

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`code: off` or `code: auto`."""
        if value is False:
            return {"snapshot": "off"}
        return {"snapshot": value} if isinstance(value, str) else None
