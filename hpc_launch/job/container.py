"""`environment:`, `code:` and `container:` of a job file: what a job runs in."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.job.type_hints import Mebibytes, Scalar, VariableName

SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD)$")
"""Searched in the name of a variable."""


class Environment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The software that the training needs, in the order in which it is set up."""

    source: Annotated[list[str], Meta(description="Files to source in the job's shell, before everything else.")] = []
    modules: Annotated[list[str], Meta(description="Environment modules to load, in this order.")] = []
    conda: Annotated[str | None, Meta(description="Conda environment to activate, by name or path.")] = None
    venv: Annotated[str | None, Meta(description="Virtual environment to activate.")] = None
    python: Annotated[
        str | None,
        Meta(description="Python interpreter. Default: the `python3` found after the steps above."),
    ] = None
    stack: Annotated[
        str | None, Meta(description="An entry of the site's `stacks:`. Default: the one for the queue's nodes.")
    ] = None
    stage: Annotated[
        Literal["auto", "node", "off"],
        Meta(
            description="Copy the virtual environment or conda environment to a disk of each node before the "
            "training starts. `auto` does so for jobs of at least 4 nodes if the site profile names a `node_local` "
            "folder and the environment is on a shared file system. `node` always does, in `/dev/shm` where there "
            "is no such folder or no room in it. A node whose copy cannot be made uses the original."
        ),
    ] = "auto"
    versions: Annotated[
        dict[str, str],
        Meta(description="Software versions, for the site's conditions.", examples=[{"nccl": "2.27.3"}]),
    ] = {}
    torch: Annotated[
        str | None,
        Meta(
            description="PyTorch version, such as `2.13`, if hpc-launch cannot find it next to the interpreter "
            "(modules, images). Options that it does not support are not used.",
            pattern=r"^\d+\.\d+",
        ),
    ] = None


class Code(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Snapshot of the code. All attempts of a run use it, so later edits do not affect them."""

    snapshot: Annotated[
        Literal["auto", "off"],
        Meta(
            description="`auto` copies the folder that contains `script` into the run folder at submission and "
            "runs the script from there. The working directory does not change. `off` runs the script "
            "from its original location."
        ),
    ] = "auto"
    exclude: Annotated[
        list[str],
        Meta(
            description="Names of files and folders to link instead of copying. `*` matches any text.",
            examples=[["data", "*.bin"]],
        ),
    ] = []
    limit: Annotated[
        Mebibytes,
        Meta(description="Maximum size of the snapshot. A larger folder is not copied; a larger file is linked."),
    ] = 100
    copy_workdir: Annotated[
        bool,
        Meta(
            description="On hosts that share no folders (`scheduler.shared_folders`): copy the working directory to "
            "each host, without caches, files that may hold secrets, and what `exclude` names. A folder larger than "
            "`limit` is refused. If false, each host must have it."
        ),
    ] = False

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`code: off` or `code: auto`."""
        if value is False:
            return {"snapshot": "off"}
        return {"snapshot": value} if isinstance(value, str) else None


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
