"""`internet:` of a site profile: internet access of the compute nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Internet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Internet access of the compute nodes. Without access, libraries are switched to offline mode."""

    compute: Annotated[
        Literal["direct", "proxy", "none"] | None,
        Meta(description="How compute nodes access the internet. Unknown if omitted."),
    ] = None
    proxy: Annotated[
        str | None,
        Meta(description="Address of the proxy.", examples=["http://proxy.example.org:3128"], min_length=1),
    ] = None
    no_proxy: Annotated[str, Meta(description="Hosts to access without the proxy, separated by commas.")] = (
        "localhost,127.0.0.1"
    )
    trackers: Annotated[
        Literal["online", "offline"] | None,
        Meta(
            description="Whether trackers send data from compute nodes. Use `offline` if uploads are possible but "
            "unreliable, for example behind a proxy on which they hang."
        ),
    ] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`internet: direct`, or `none`."""
        return {"compute": value} if isinstance(value, str) else None
