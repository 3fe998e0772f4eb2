"""`paths:` and `caches:` of a site profile: folders, purge policies and cache locations."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

MAX_PATH = 4096
"""PATH_MAX of Linux, for paths of a profile before and after their names are filled in."""


class Folder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder of the site."""

    path: Annotated[
        str,
        Meta(
            description="The folder. May contain `${user}`, `${home}`, `${account}`, `${env.NAME}` and "
            "`${param.NAME}`, and, if only the job knows the folder, `${shell.NAME}`, a variable of "
            "the job's own shell.",
            max_length=MAX_PATH,
        ),
    ]
    purge_days: Annotated[int | None, Meta(description="Number of days after which the site deletes files.", ge=1)] = (
        None
    )
    node_local: Annotated[bool, Meta(description="Whether each node has its own copy of the folder.")] = False
    option: Annotated[
        str | None,
        Meta(
            description="Entry of `options:` that provides the folder. It is enabled automatically for jobs that "
            "use the folder."
        ),
    ] = None
    note: Annotated[str, Meta(description="Information for users.")] = ""

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`NAME: FOLDER`."""
        return {"path": value} if isinstance(value, str) else None


CACHE_VARIABLES = {
    "huggingface": ("HF_HOME",),
    "torch": ("TORCH_HOME",),
    "triton": ("TRITON_CACHE_DIR",),
    "inductor": ("TORCHINDUCTOR_CACHE_DIR",),
    "miopen": ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"),
    "cuda": ("CUDA_CACHE_PATH",),
    "xdg": ("XDG_CACHE_HOME",),
    "pip": ("PIP_CACHE_DIR",),
}
"""Variables that set the location of known caches. Any other key of `caches:` is itself a variable."""


class Cache(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder for files that a library downloads or compiles."""

    path: Annotated[str, Meta(description="The folder. May contain `${paths.NAME}`, `${job.id}` and `${shell.NAME}`.")]
    per: Annotated[
        Literal["job", "node"],
        Meta(description="Create the folder once on shared storage (`job`), or on every node (`node`)."),
    ] = "job"

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`NAME: FOLDER`."""
        return {"path": value} if isinstance(value, str) else None
