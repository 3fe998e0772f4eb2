"""rank-K.json: what the probe job (agent/smoke.py) measured on one node."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Adapter(Struct, frozen=True, kw_only=True):
    """One adapter of the fast network."""

    name: str = ""
    link: str = ""
    """`InfiniBand` or `Ethernet`."""


class FabricMeasurement(Struct, frozen=True, kw_only=True):
    """The fast network of the node."""

    adapters: tuple[Adapter, ...] = ()
    slingshot: tuple[str, ...] = ()
    """Its Slingshot interfaces."""


class GpuMeasurement(Struct, frozen=True, kw_only=True):
    """The GPUs that the process sees."""

    variables: dict[str, str] = {}
    """Slurm's variables about GPUs."""
    nvidia: int = 0
    amd: int = 0
    models: tuple[str, ...] = ()
    """`MODEL, MEBIBYTES` of each GPU."""


class InternetMeasurement(Struct, frozen=True, kw_only=True):
    """Access to the internet from the node."""

    compute: str | None = None
    proxy: str | None = None
    needs_password: bool = False
    """The proxy's address has a password, and is therefore not recorded."""


class TorchMeasurement(Struct, frozen=True, kw_only=True):
    """The sum by PyTorch."""

    version: str
    backend: str


class CollectiveMeasurement(Struct, frozen=True, kw_only=True):
    """What the nodes measured together."""

    interface: str | None = None
    """The interface that carried the sum."""
    by: str | None = None
    """How the first node was reached: `name` or `address`."""
    names: dict[str, Any] = {}
    """The addresses of each host name; empty where it cannot be resolved."""
    folders: dict[str, bool] | None = None
    """Whether each folder is visible."""
    sum_is_right: bool = False
    seconds: float | None = None
    bytes: int | None = None
    torch: TorchMeasurement | None = None


class SmokeRecord(Struct, frozen=True, kw_only=True):
    """The measurements on one node; None for a group that could not be measured."""

    python: str | None = None
    faults: tuple[str, ...] = ()
    fabric: FabricMeasurement | None = None
    gpus: GpuMeasurement = GpuMeasurement()
    internet: InternetMeasurement | None = None
    runtimes: tuple[str, ...] = ()
    together: CollectiveMeasurement | None = None
