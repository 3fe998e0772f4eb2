"""`environment:` of a job file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Environment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The software that the training needs, in the order in which it is set up."""

    source: Annotated[list[str], Meta(description="Files that the job's shell sources first.")] = []
    modules: Annotated[list[str], Meta(description="Environment modules to load, in this order.")] = []
    conda: Annotated[str | None, Meta(description="A conda environment to activate, by name or path.")] = None
    venv: Annotated[str | None, Meta(description="The folder of a virtual environment to activate.")] = None
    python: Annotated[
        str | None,
        Meta(description="The Python interpreter; `python3` as it is found after the steps above if left out."),
    ] = None
    stack: Annotated[
        str | None, Meta(description="An entry of the site's `stacks:`; the one for the queue's nodes if left out.")
    ] = None
    versions: Annotated[
        dict[str, str],
        Meta(description="Versions of software, for the conditions of the site.", examples=[{"nccl": "2.27.3"}]),
    ] = {}
    torch: Annotated[
        str | None,
        Meta(
            description="PyTorch's version, such as `2.13`, where it cannot be found beside the interpreter (modules, "
            "images): options are used only where it has them.",
            pattern=r"^\d+\.\d+",
        ),
    ] = None
