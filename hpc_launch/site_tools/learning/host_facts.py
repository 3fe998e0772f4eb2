"""What the hosts of a site without a scheduler answer about themselves, checked: a host may print anything."""

from __future__ import annotations

import ipaddress
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hpc_launch.sites.network import INTERFACE

Text = Annotated[str, Meta(max_length=100, pattern=r"^[ -~]*\Z")]
Count = Annotated[int, Meta(ge=1, le=1 << 16)]
Mebibytes = Annotated[int, Meta(ge=0, le=1 << 40)]


class HostGpu(Struct, frozen=True):
    """A GPU of a host. Memory in MiB, 0 if unknown."""

    vendor: Annotated[str, Meta(pattern=r"^(nvidia|amd)\Z")]
    model: Text
    memory: Mebibytes
    driver: Text


class HostInterface(Struct, frozen=True):
    """A network interface with its IPv4 address. Speed in Mb/s, 0 if unknown."""

    name: Annotated[str, Meta(max_length=15, pattern=INTERFACE.replace("$", r"\Z"))]
    address: Text
    prefix: Annotated[int, Meta(ge=0, le=32)]
    speed: Annotated[int, Meta(ge=0, le=1 << 40)] = 0

    @property
    def network(self) -> str:
        """Its network, such as `10.0.0.0/24`. Raises ValueError for an invalid address."""
        return str(ipaddress.IPv4Interface(f"{self.address}/{self.prefix}").network)


class PythonVersions(Struct, frozen=True):
    """An interpreter and its PyTorch; '' if it has none."""

    version: Text
    torch: Text = ""


class HostFacts(Struct, frozen=True, kw_only=True):
    """What a host has (agent/describe_host.py); None for what could not be found out."""

    cpus: Count
    threads_per_core: Annotated[int, Meta(ge=1, le=16)] = 1
    memory: Mebibytes | None = None
    arch: Text | None = None
    gpus: Annotated[tuple[HostGpu, ...], Meta(max_length=64)] = ()
    interfaces: Annotated[tuple[HostInterface, ...], Meta(max_length=64)] = ()
    python: PythonVersions | None = None
    launcher_python: PythonVersions | None = None
    """The interpreter that runs hpc-launch here, at the same path there."""
    pdsh: Text | None = None
    """How pdsh connects by default."""
    runtimes: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    folders: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()
    """Folders that it may share with others; the first one is the user's home."""
    faults: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()


def read_facts(text: str) -> HostFacts:
    """The facts in an answer. Raises ValueError if it is not what the program prints."""
    try:
        facts = msgspec.json.decode(text, type=HostFacts)
    except msgspec.MsgspecError as error:
        raise ValueError(f"unexpected answer: {error}") from None
    for interface in facts.interfaces:
        ipaddress.IPv4Interface(f"{interface.address}/{interface.prefix}")
    return facts


def common_network(hosts: dict[str, HostFacts]) -> dict[str, HostInterface]:
    """The interface of each host in the fastest network that all of them are in; empty if there is none.

    A network in which two hosts have the same address, such as Docker's, is another one on each host.
    """
    networks: dict[str, dict[str, HostInterface]] = {}
    for name, facts in hosts.items():
        for interface in facts.interfaces:
            if not ipaddress.IPv4Address(interface.address).is_link_local:
                networks.setdefault(interface.network, {}).setdefault(name, interface)
    complete = [
        members
        for members in networks.values()
        if len(members) == len(hosts) == len({interface.address for interface in members.values()})
    ]
    return max(complete, key=lambda members: min(one.speed for one in members.values()), default={})
