"""`containers:` of a site profile: how images run, and which there are."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Image(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image that the site has."""

    path: Annotated[str, Meta(description="The file, or what the runtime calls it. `${paths.NAME}` may stand in it.")]
    torch: Annotated[str | None, Meta(description="PyTorch's version in it.", pattern=r"^\d+\.\d+")] = None
    arch: Annotated[
        Literal["x86_64", "aarch64"] | None,
        Meta(description="The processor's architecture that it is for, where its file does not tell."),
    ] = None
    uri: Annotated[
        str | None,
        Meta(
            description="Where `containers pull NAME` gets it from.",
            examples=["docker://pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"],
        ),
    ] = None
    digest: Annotated[
        str | None,
        Meta(description="What the file must come to; another one is not taken.", pattern=r"^sha256:[0-9a-f]{64}$"),
    ] = None

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
    binds: Annotated[
        list[str],
        Meta(
            description="Folders that every container sees, as `PATH` or `PATH:INSIDE`; `${job.id}` may stand in them."
        ),
    ] = []
    home: Annotated[bool, Meta(description="Whether the home folder is seen inside.")] = False
    writable: Annotated[bool, Meta(description="Whether an image's own files may be written to, in memory.")] = False
    options: Annotated[list[str], Meta(description="More options for the runtime, each a list item.")] = []
    modules: Annotated[
        list[str], Meta(description="Environment modules that the runtime needs, loaded before it starts.")
    ] = []
    folder: Annotated[
        str | None,
        Meta(
            description="Where `containers pull` and `containers build` put images, on storage that all nodes see. "
            "`${paths.NAME}` may stand in it.",
            examples=["${paths.scratch}/images"],
        ),
    ] = None
    pull_on_nodes: Annotated[
        bool,
        Meta(
            description="Whether a job may name a URI that each of its nodes fetches by itself: only where something "
            "keeps them from asking the registry all at once."
        ),
    ] = False
    libraries: Annotated[
        list[str] | None,
        Meta(
            description="Shared libraries that the fast network needs inside; by `fabric.kind` if left out.",
            examples=[["libnccl-net.so", "libfabric.so.1"]],
        ),
    ] = None
    images: Annotated[dict[str, Image], Meta(description="The images that job files name.")] = {}
