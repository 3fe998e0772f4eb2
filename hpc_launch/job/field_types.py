"""Field types shared by the job file and the site profile. `spec.units` parses the ones with a unit."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Seconds = Annotated[int, Meta(extra={"unit": "time"})]
Duration = Annotated[int, Meta(extra={"unit": "duration"})]
Mebibytes = Annotated[int, Meta(extra={"unit": "memory"})]
Scalar = str | int | float | bool | None

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
VariableName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
