"""`environment:` of a job file: the software to load."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


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
