"""`environment:`, `code:`, `data:` and `container:` of a job file: what a job runs in, and on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hpc_launch.job.type_hints import Mebibytes, RuntimeName, Scalar, VariableName, short_form


class Environment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The software that the training needs, in the order in which it is set up."""

    source: list[str] = []
    """Files to source in the job's shell, before everything else."""
    modules: list[str] = []
    """Environment modules to load, in this order."""
    conda: str | None = None
    """Conda environment to activate, by name or path."""
    venv: str | None = None
    """Virtual environment to activate."""
    python: str | None = None
    """Python interpreter. Default: the `python3` found after the steps above."""
    stack: str | None = None
    """An entry of the site's `stacks:`. Default: the one for the queue's nodes."""
    stage: Literal["auto", "node", "off"] = "auto"
    """Copy the virtual environment or conda environment to a disk of each node before the training starts. `auto`
    does so for jobs of at least 4 nodes if the site profile names a `node_local` folder and the environment is on a
    shared file system. `node` always does, in `/dev/shm` where there is no such folder or no room in it. A node
    whose copy cannot be made uses the original."""
    versions: Annotated[dict[str, str], Meta(examples=[{"nccl": "2.27.3"}])] = {}
    """Software versions, for the site's conditions."""
    torch: Annotated[str | None, Meta(pattern=r"^\d+\.\d+")] = None
    """PyTorch version, such as `2.13`, if hpc-launch cannot find it next to the interpreter (modules, images).
    Options that it does not support are not used."""


class Code(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Snapshot of the code. All attempts of a run use it, so later edits do not affect them."""

    snapshot: Literal["auto", "off"] = "auto"
    """`auto` copies the git work tree that contains `script`, or else the job file's folder, into the run folder at
    submission and runs the script from there. The working directory does not change. `off` runs the original."""
    exclude: Annotated[list[str], Meta(examples=[["data", "*.bin"]])] = []
    """Names of files and folders to link instead of copying. `*` matches any text."""
    limit: Mebibytes = 100
    """Maximum size of the snapshot. A larger folder is not copied; a larger file is linked."""
    copy_workdir: bool = False
    """On hosts that share no folders (`scheduler.shared_folders`): copy the working directory to each host, without
    caches, files that may hold secrets, and what `exclude` names. A folder larger than `limit` is refused. If
    false, each host must have it."""

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`code: off` or `code: auto`."""
        if value is False:
            return {"snapshot": "off"}
        return {"snapshot": value} if isinstance(value, str) else None


class Data(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training data that each node gets before the training starts. The training finds it in the folder
    $HPC_LAUNCH_DATA, inside images too. After an archive that a node could not copy or mount, the job ends."""

    source: Annotated[str, Meta(examples=["${paths.scratch}/imagenet.sqsh"])] = field(name="from")
    """A tar, which may be compressed, a squashfs image, or a folder. With `shard`, a pattern of files."""
    how: Literal["auto", "copy", "mount", "off"] = "auto"
    """`auto` mounts a squashfs image and copies everything else to a `node_local` folder of the site, or to `/dev/shm`.
    `copy` copies the image too, and mounts the copy. `off` leaves the data where it is."""
    shard: bool = False
    """Copy to each node every n-th of the files by name, where the job has n nodes. They are not unpacked."""

    __short_forms__ = short_form("`data: PATH`.", {str: "from"})


ACTIONS = ("source", "venv", "set", "unset", "prepend")
"""Actions of a prelude step. Each step has exactly one."""


class ContainerStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step inside the image, before the launcher starts. Exactly one key defines the action. Paths refer to the
    file system inside the image."""

    source: str | None = None
    """File to source in the shell."""
    venv: str | None = None
    """Virtual environment to activate."""
    set: dict[VariableName, Scalar] | None = None
    """Variables to set. null unsets a variable."""
    unset: list[VariableName] | None = None
    """Variables to unset."""
    prepend: dict[VariableName, str] | None = None
    """Values to prepend, with a colon, to path variables such as PATH."""


class Container(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The image to run the training in: one container per node, with the launcher inside."""

    image: str
    """A name from the site's `images`, a file, or an image reference that the runtime accepts."""
    runtime: RuntimeName | None = None
    """Container runtime. Default: the site's. `edf` is CSCS's Container Engine."""
    binds: Annotated[list[str], Meta(examples=[["/scratch/corpus:/data"]])] = []
    """Folders to mount, as `PATH` or `PATH:PATH_IN_CONTAINER`. The run folder, the job file's folder and the
    working directory are always mounted."""
    home: bool | None = None
    """Mount the home folder. Default: the site's setting."""
    writable: bool | None = None
    """Allow writes to the image's own files. They are kept in memory and discarded at the end."""
    options: list[str] = []
    """Extra options for the runtime, one list item each."""
    stage: Literal["auto", "node", "off"] = "auto"
    """Copy the image to a disk of each node before the training starts. `node` does so if the image is a file that
    the runtime reads in place (apptainer, singularity, charliecloud). `auto` does not: an image is already one
    file."""
    modules: Annotated[list[str], Meta(examples=[["apptainer"]])] = []
    """Environment modules that the runtime needs. They are loaded outside the image before the runtime starts,
    after those of `environment` and of the site's `containers`."""
    prelude: Annotated[list[ContainerStep], Meta(examples=[[{"source": "/opt/setup.sh"}, {"venv": "/opt/venv"}]])] = []
    """Steps to run inside the image before the launcher, after those of the site."""

    __short_forms__ = short_form("`container: IMAGE`.", {str: "image"})


def outside_of(path: str, binds: Iterable[str]) -> str | None:
    """The path on the host that a path in an image stands for; None if no bind says it."""
    sides = ((bind.split(":") * 2)[:2] for bind in binds)
    above = [(inside, host) for host, inside in sides if f"{path}/".startswith(f"{inside.rstrip('/')}/")]
    inside, host = max(above, key=lambda pair: len(pair[0]), default=("", None))
    return None if host is None else host + path.removeprefix(inside)
