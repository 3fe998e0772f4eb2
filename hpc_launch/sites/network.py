"""`network:` and `launch:` of a site profile: how processes are started and find each other."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the processes of a job find each other."""

    master_suffix: Annotated[
        str,
        Meta(
            description="Put behind the first node's name to get its address on the fast network (JSC: `i`).",
            pattern=r"^[A-Za-z0-9.-]*$",
        ),
    ] = ""
    ports: Annotated[
        tuple[int, int],
        Meta(
            description="First and last port for the rendezvous; below 32768, where the ephemeral ports begin.",
        ),
    ] = (10000, 29999)


class Launch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the step inside the job is started."""

    srun_options: Annotated[
        list[str], Meta(description="More options for srun, each a list item.", examples=[["--mpi=none"]])
    ] = []
