"""`paths:`, `caches:` and `containers:` of a site profile: folders, purge policies, caches and images."""

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


class Image(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image provided by the site."""

    path: Annotated[
        str, Meta(description="File, or an image reference that the runtime accepts. May contain `${paths.NAME}`.")
    ]
    torch: Annotated[str | None, Meta(description="PyTorch version in the image.", pattern=r"^\d+\.\d+")] = None
    arch: Annotated[
        Literal["x86_64", "aarch64"] | None,
        Meta(description="CPU architecture of the image, if its file does not state it."),
    ] = None
    uri: Annotated[
        str | None,
        Meta(
            description="Where `containers pull NAME` downloads the image from.",
            examples=["docker://pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"],
        ),
    ] = None
    digest: Annotated[
        str | None,
        Meta(
            description="Required digest of the file. An image with another digest is rejected.",
            pattern=r"^sha256:[0-9a-f]{64}$",
        ),
    ] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`NAME: PATH`."""
        return {"path": value} if isinstance(value, str) else None


class Containers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How images run on this site."""

    runtime: Annotated[
        Literal["apptainer", "singularity", "pyxis", "edf", "podman-hpc", "shifter", "charliecloud", "none"],
        Meta(description="Default container runtime."),
    ] = "apptainer"
    binds: Annotated[
        list[str],
        Meta(
            description="Folders to mount in every container, as `PATH` or `PATH:PATH_IN_CONTAINER`. May contain "
            "`${job.id}`."
        ),
    ] = []
    home: Annotated[bool, Meta(description="Mount the home folder.")] = False
    writable: Annotated[bool, Meta(description="Allow writes to an image's own files, in memory.")] = False
    options: Annotated[list[str], Meta(description="Extra options for the runtime, one list item each.")] = []
    modules: Annotated[
        list[str], Meta(description="Environment modules that the runtime needs. They are loaded before it starts.")
    ] = []
    folder: Annotated[
        str | None,
        Meta(
            description="Folder for images from `containers pull` and `containers build`, on storage shared by all "
            "nodes. May contain `${paths.NAME}`.",
            examples=["${paths.scratch}/images"],
        ),
    ] = None
    pull_on_nodes: Annotated[
        bool,
        Meta(
            description="Allow jobs to use a URI that every node pulls itself. Only set this if something prevents "
            "the nodes from overloading the registry."
        ),
    ] = False
    libraries: Annotated[
        list[str] | None,
        Meta(
            description="Shared libraries that the fast network needs inside the image. Default: by `fabric.kind`.",
            examples=[["libnccl-net.so", "libfabric.so.1"]],
        ),
    ] = None
    images: Annotated[dict[str, Image], Meta(description="Images that job files can name.")] = {}
