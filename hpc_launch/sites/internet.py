"""`internet:` of a site profile: what the compute nodes reach."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Internet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the compute nodes reach. Where it is nothing, libraries are told not to try."""

    compute: Annotated[
        Literal["direct", "proxy", "none"] | None,
        Meta(description="How compute nodes reach the internet; left out, it is not known."),
    ] = None
    proxy: Annotated[
        str | None,
        Meta(description="The address of the proxy.", examples=["http://proxy.example.org:3128"], min_length=1),
    ] = None
    no_proxy: Annotated[str, Meta(description="Hosts that are reached without it, with commas between them.")] = (
        "localhost,127.0.0.1"
    )
    trackers: Annotated[
        Literal["online", "offline"] | None,
        Meta(
            description="Whether trackers shall send from compute nodes: `offline` where they can and should not, as "
            "behind a proxy that lets their uploads hang."
        ),
    ] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`internet: direct`, or `none`."""
        return {"compute": value} if isinstance(value, str) else None
