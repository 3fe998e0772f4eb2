"""`paths:`, `caches:` and `containers:` of a site profile: folders, purge policies, caches and images."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.job.type_hints import RuntimeName, short_form
from hpc_launch.sites.job_settings import When

MAX_PATH = 4096
"""PATH_MAX of Linux, for paths of a profile before and after their names are filled in."""


class Folder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder of the site."""

    path: Annotated[str, Meta(max_length=MAX_PATH)]
    """The folder. May contain `${user}`, `${home}`, `${account}`, `${env.NAME}` and `${param.NAME}`, and, if only
    the job knows the folder, `${shell.NAME}`, a variable of the job's own shell."""
    purge_days: Annotated[int | None, Meta(ge=1)] = None
    """Number of days after which the site deletes files."""
    node_local: bool = False
    """Whether each node has its own copy of the folder."""
    stripe: Annotated[str, Meta(examples=["-c 8 -S 4M"])] = ""
    """Options of `lfs setstripe` that the site recommends for large files on its Lustre. A run's checkpoint folder
    below this one gets them when it is created."""
    option: str | None = None
    """Entry of `options:` that provides the folder. It is enabled automatically for jobs that use the folder."""
    note: str = ""
    """Information for users."""

    __short_forms__ = short_form("`NAME: FOLDER`.", {str: "path"})


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

    path: str
    """The folder. May contain `${paths.NAME}`, `${job.id}` and `${shell.NAME}`."""
    per: Literal["job", "node"] = "job"
    """Create the folder once on shared storage (`job`), or on every node (`node`)."""
    when: When | None = None
    """Use the folder only if this condition holds."""
    default: bool = False
    """Use it only if no user, module or models in the home choose another, and if images mount it (launching.md)."""

    __short_forms__ = short_form("`NAME: FOLDER`.", {str: "path"})


class Image(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image provided by the site."""

    path: str
    """File, or an image reference that the runtime accepts. May contain `${paths.NAME}`."""
    torch: Annotated[str | None, Meta(pattern=r"^\d+\.\d+")] = None
    """PyTorch version in the image."""
    arch: Literal["x86_64", "aarch64"] | None = None
    """CPU architecture of the image, if its file does not state it."""
    uri: Annotated[str | None, Meta(examples=["docker://pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"])] = None
    """Where `containers pull NAME` downloads the image from."""
    digest: Annotated[str | None, Meta(pattern=r"^sha256:[0-9a-f]{64}$")] = None
    """Required digest of the file. An image with another digest is rejected."""

    __short_forms__ = short_form("`NAME: PATH`.", {str: "path"})


class Containers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How images run on this site."""

    runtime: RuntimeName | Literal["none"] = "apptainer"
    """Default container runtime."""
    binds: list[str] = []
    """Folders to mount in every container, as `PATH` or `PATH:PATH_IN_CONTAINER`. May contain `${job.id}`."""
    home: bool = False
    """Mount the home folder."""
    writable: bool = False
    """Allow writes to an image's own files, in memory."""
    options: list[str] = []
    """Extra options for the runtime, one list item each."""
    modules: list[str] = []
    """Environment modules that the runtime needs. They are loaded before it starts."""
    folder: Annotated[str | None, Meta(examples=["${paths.scratch}/images"])] = None
    """Folder for images from `containers pull` and `containers build`, on storage shared by all nodes. May contain
    `${paths.NAME}`."""
    pull_on_nodes: bool = False
    """Allow jobs to use a URI that every node pulls itself. Only set this if something prevents the nodes from
    overloading the registry."""
    libraries: Annotated[list[str] | None, Meta(examples=[["libnccl-net.so", "libfabric.so.1"]])] = None
    """Shared libraries that the fast network needs inside the image. Default: by `fabric.kind`."""
    images: dict[str, Image] = {}
    """Images that job files can name."""
