"""`container:` of a job file."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.spec.field_types import Scalar

VariableName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

ACTIONS = ("source", "venv", "set", "unset", "prepend")
"""The keys of a step, of which exactly one says what it does."""


class InnerStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step inside the image, before the launcher. Exactly one key says what it does. Paths are those inside."""

    source: Annotated[str | None, Meta(description="A file that the shell sources.")] = None
    venv: Annotated[str | None, Meta(description="The folder of a virtual environment to activate.")] = None
    set: Annotated[dict[VariableName, Scalar] | None, Meta(description="Variables to set; null takes one away.")] = None
    unset: Annotated[list[VariableName] | None, Meta(description="Variables to take away.")] = None
    prepend: Annotated[
        dict[VariableName, str] | None,
        Meta(description="Texts to put before what a variable such as PATH holds inside, with a colon."),
    ] = None


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
    modules: Annotated[
        list[str],
        Meta(
            description="Environment modules that the runtime itself needs; loaded outside, before it starts and after "
            "those of `environment` and of the site's `containers`.",
            examples=[["apptainer"]],
        ),
    ] = []
    prelude: Annotated[
        list[InnerStep],
        Meta(
            description="Steps inside the image, before the launcher and after those of the site.",
            examples=[[{"source": "/opt/setup.sh"}, {"venv": "/opt/venv"}]],
        ),
    ] = []

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`container: IMAGE`."""
        return {"image": value} if isinstance(value, str) else None
