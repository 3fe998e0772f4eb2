"""`container:` of a job file: the image and how to run it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.job.field_types import Scalar, VariableName

ACTIONS = ("source", "venv", "set", "unset", "prepend")
"""Actions of a prelude step. Each step has exactly one."""


class ContainerStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step inside the image, before the launcher starts. Exactly one key defines the action. Paths refer to the
    file system inside the image."""

    source: Annotated[str | None, Meta(description="File to source in the shell.")] = None
    venv: Annotated[str | None, Meta(description="Virtual environment to activate.")] = None
    set: Annotated[dict[VariableName, Scalar] | None, Meta(description="Variables to set. null unsets a variable.")] = (
        None
    )
    unset: Annotated[list[VariableName] | None, Meta(description="Variables to unset.")] = None
    prepend: Annotated[
        dict[VariableName, str] | None,
        Meta(description="Values to prepend, with a colon, to path variables such as PATH."),
    ] = None


class Container(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The image to run the training in: one container per node, with the launcher inside."""

    image: Annotated[
        str,
        Meta(description="A name from the site's `images`, a file, or an image reference that the runtime accepts."),
    ]
    runtime: Annotated[
        Literal["apptainer", "singularity", "pyxis", "edf", "podman-hpc", "shifter", "charliecloud"] | None,
        Meta(description="Container runtime. Default: the site's. `edf` is CSCS's Container Engine."),
    ] = None
    binds: Annotated[
        list[str],
        Meta(
            description="Folders to mount, as `PATH` or `PATH:PATH_IN_CONTAINER`. The run folder, the job file's "
            "folder and the working directory are always mounted.",
            examples=[["/scratch/corpus:/data"]],
        ),
    ] = []
    home: Annotated[bool | None, Meta(description="Mount the home folder. Default: the site's setting.")] = None
    writable: Annotated[
        bool | None,
        Meta(description="Allow writes to the image's own files. They are kept in memory and discarded at the end."),
    ] = None
    options: Annotated[list[str], Meta(description="Extra options for the runtime, one list item each.")] = []
    stage: Annotated[
        Literal["auto", "node", "off"],
        Meta(
            description="Copy the image to a disk of each node before the training starts. `node` does so if the "
            "image is a file that the runtime reads in place (apptainer, singularity, charliecloud). `auto` does "
            "not: an image is already one file."
        ),
    ] = "auto"
    modules: Annotated[
        list[str],
        Meta(
            description="Environment modules that the runtime needs. They are loaded outside the image before the "
            "runtime starts, after those of `environment` and of the site's `containers`.",
            examples=[["apptainer"]],
        ),
    ] = []
    prelude: Annotated[
        list[ContainerStep],
        Meta(
            description="Steps to run inside the image before the launcher, after those of the site.",
            examples=[[{"source": "/opt/setup.sh"}, {"venv": "/opt/venv"}]],
        ),
    ] = []

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`container: IMAGE`."""
        return {"image": value} if isinstance(value, str) else None
