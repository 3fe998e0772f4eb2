"""`container:` of a job file."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Container(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The image that the training runs in: one container a node, with the launcher inside it."""

    image: Annotated[
        str, Meta(description="A name of the site's `images`, a file, or what the runtime calls an image.")
    ]
    runtime: Annotated[
        Literal["apptainer", "singularity", "pyxis", "edf", "podman-hpc", "shifter", "charliecloud"] | None,
        Meta(description="What runs the image; the site's own runtime if left out. `edf` is CSCS's Container Engine."),
    ] = None
    binds: Annotated[
        list[str],
        Meta(
            description="Folders to see inside, as `PATH` or `PATH:INSIDE`. The run folder, the job file's folder and "
            "the work folder are always seen.",
            examples=[["/scratch/corpus:/data"]],
        ),
    ] = []
    home: Annotated[
        bool | None, Meta(description="Whether the home folder is seen inside; the site's rule if left out.")
    ] = None
    writable: Annotated[
        bool | None, Meta(description="Whether the image's own files may be written to, in memory, and forgotten.")
    ] = None
    options: Annotated[list[str], Meta(description="More options for the runtime itself, each a list item.")] = []

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`container: IMAGE`."""
        return {"image": value} if isinstance(value, str) else None
