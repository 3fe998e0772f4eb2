"""`containers:` of a site profile: how images run, and which there are."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Image(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image that the site has."""

    path: Annotated[str, Meta(description="The file, or what the runtime calls it. `${paths.NAME}` may stand in it.")]
    torch: Annotated[str | None, Meta(description="PyTorch's version in it.", pattern=r"^\d+\.\d+")] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`NAME: PATH`."""
        return {"path": value} if isinstance(value, str) else None


class Containers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How images run here."""

    runtime: Annotated[
        Literal["apptainer", "singularity", "pyxis", "edf", "podman-hpc", "shifter", "charliecloud", "none"],
        Meta(description="What runs them where the job does not say."),
    ] = "apptainer"
    binds: Annotated[list[str], Meta(description="Folders that every container sees, as `PATH` or `PATH:INSIDE`.")] = []
    home: Annotated[bool, Meta(description="Whether the home folder is seen inside.")] = False
    writable: Annotated[bool, Meta(description="Whether an image's own files may be written to, in memory.")] = False
    options: Annotated[list[str], Meta(description="More options for the runtime, each a list item.")] = []
    images: Annotated[dict[str, Image], Meta(description="The images that job files name.")] = {}
