"""`environment:` of a job file: the software to load."""

from __future__ import annotations

from typing import Annotated

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
