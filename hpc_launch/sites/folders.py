"""`paths:` and `caches:` of a site profile: the folders of a site, how long files stay, what keeps its cache where."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Folder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder of the site."""

    path: Annotated[
        str,
        Meta(
            description="The folder. `${user}`, `${home}`, `${account}`, `${env.NAME}` and `${param.NAME}` may stand "
            "in it; `${shell.NAME}`, a variable of the job's own shell, in a folder that only the job knows."
        ),
    ]
    purge_days: Annotated[int | None, Meta(description="Days after which the site deletes files.", ge=1)] = None
    node_local: Annotated[bool, Meta(description="Whether each node has its own.")] = False
    option: Annotated[
        str | None,
        Meta(description="The entry of `options:` that a job needs to have it; it is then asked for by itself."),
    ] = None
    note: Annotated[str, Meta(description="What a user should know about it.")] = ""

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`NAME: FOLDER`."""
        return {"path": value} if isinstance(value, str) else None


VARIABLES = {
    "huggingface": ("HF_HOME",),
    "torch": ("TORCH_HOME",),
    "triton": ("TRITON_CACHE_DIR",),
    "inductor": ("TORCHINDUCTOR_CACHE_DIR",),
    "miopen": ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"),
    "cuda": ("CUDA_CACHE_PATH",),
    "xdg": ("XDG_CACHE_HOME",),
    "pip": ("PIP_CACHE_DIR",),
}
"""The variables that name the caches we know; another key of `caches:` is the variable itself."""


class Cache(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder in which a library keeps what it fetched or compiled."""

    path: Annotated[
        str, Meta(description="The folder; `${paths.NAME}`, `${job.id}` and `${shell.NAME}` may stand in it.")
    ]
    per: Annotated[
        Literal["job", "node"],
        Meta(description="Whether it is made once, on shared storage, or on each node."),
    ] = "job"

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`NAME: FOLDER`."""
        return {"path": value} if isinstance(value, str) else None
