"""`billing:` of a site profile: what a job costs, for readers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Billing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the site charges for jobs. For readers."""

    unit: Annotated[
        str | None, Meta(description="Unit in which jobs are charged.", examples=["node hour", "GPU hour"])
    ] = None
    smallest: Annotated[
        str | None,
        Meta(
            description="Smallest allocation that a job can get and is charged for.",
            examples=["one GPU with 18 cores and 120 GiB"],
        ),
    ] = None
