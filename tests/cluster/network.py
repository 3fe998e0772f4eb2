"""The cluster's own network: a bridge on the login node and a cable to each node."""

from __future__ import annotations

import subprocess

from tests.cluster.settings import LOGIN_ADDRESS, Settings

BRIDGE = "br0"


def ip(*words: str) -> None:
    """Run iproute2's ``ip`` in the network namespace of the caller."""
    subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL)


def make_switch() -> None:
    """Set up the login node's side: the bridge that every cable ends in."""
    ip("link", "set", "lo", "up")
    # Without an address of its own it takes the lowest one of its cables: when that node dies, the others could not
    # reach the controller until their neighbour tables expire.
    ip("link", "add", BRIDGE, "address", "02:00:0a:4d:00:fe", "type", "bridge", "forward_delay", "0")
    ip("address", "add", f"{LOGIN_ADDRESS}/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")


def lay_cable(node: str, process: int) -> None:
    """Connect a node. Its interface goes into the network namespace of `process`.

    A node keeps its hardware address when it comes back after a death: its neighbours would
    go on sending to the old one for a while.
    """
    number = int(node[1:])
    mac = f"02:00:0a:4d:00:{number:02x}"
    peer = ("type", "veth", "peer", "name", "eth0", "address", mac, "netns", str(process))
    ip("link", "add", cable(node), *peer)
    ip("link", "set", cable(node), "master", BRIDGE, "up")


def switch_on(node: str, settings: Settings) -> None:
    """Set up the node's side of its cable, within the node's network namespace."""
    ip("link", "set", "lo", "up")
    ip("address", "add", f"{settings.address(node)}/24", "dev", "eth0")
    ip("link", "set", "eth0", "up")


def cable(node: str) -> str:
    """The name of a node's cable on the login node."""
    return f"cable-{node}"


def cut(node: str) -> None:
    """Let nothing through, in either direction; no end of a connection is told."""
    ip("link", "set", cable(node), "down")


def mend(node: str) -> None:
    """Undo `cut`."""
    ip("link", "set", cable(node), "up")


def remove(node: str) -> None:
    """Take the cable of a dead node away; it may be gone with the node already."""
    subprocess.run(["ip", "link", "delete", cable(node)], stderr=subprocess.DEVNULL, check=False)
