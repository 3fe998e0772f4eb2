"""A fault of a node, and the ways in which one is planted there.

`plant` and `undo` are shell commands of root on the node. They know the node's name as NODE and the places of the job,
such as BIN, the stand-ins of the tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.cluster import Cluster

COMMON = "common"
"""In place of a node: what is reported without blaming one."""

USUAL_S = 5.0
LIMITS_S = {
    **dict.fromkeys(("software", "gpu compute", "answer"), 15.0),
    "gpu processes": 55.0,
    **dict.fromkeys(("gpu matrix product", "cpu matrix product"), 30.0),
    **dict.fromkeys(("pairs", "link", "nccl network"), 60.0),
}
"""Seconds from the start of the nodes' check until a fault has to be named. A measurement takes 30 s."""


def shell(cluster: Cluster, node: str, commands: str, places: Mapping[str, str], *, check: bool = True) -> None:
    """Run commands as root on a node, if there are any."""
    if not commands:
        return
    words = ["bash", "-ec" if check else "-c", commands]
    done = cluster.run(words, user="root", node=node, env={**places, "NODE": node})
    assert done.returncode == 0 or not check, f"{node}: {commands}: {done.stderr}"


def filled(text: str, places: Mapping[str, str]) -> str:
    """A text with the names of the places."""
    for name, place in places.items():
        text = text.replace(f"${name}", place)
    return text


@dataclass(frozen=True)
class Fault:
    """One fault of a node.

    Attributes:
        fault: What is planted.
        node: Where, and who has to be named for it; COMMON for what is reported without blaming a node.
        check: The check that has to fail on this node; empty if it must not be blamed.
        says: A part of the message.
        plant: Shell commands on the node before the job.
        undo: Shell commands on the node afterwards.
        at: The node for the commands, where it is another one.
    """

    fault: str
    node: str
    check: str
    says: str
    plant: str
    undo: str = ""
    at: str = ""

    @property
    def limit(self) -> float:
        """Seconds until it has to be named."""
        return LIMITS_S.get(self.check, USUAL_S)

    def planted(self, cluster: Cluster, places: Mapping[str, str]) -> None:
        """Plant it, where that takes a command."""
        shell(cluster, self.at or self.node, self.plant, places)

    def undone(self, cluster: Cluster, places: Mapping[str, str]) -> None:
        """Repair the node."""
        shell(cluster, self.at or self.node, self.undo, places, check=False)

    def is_named(self, key: tuple[str, str], places: Mapping[str, str]) -> bool:
        """Whether a node and a check are those of this fault; the check may be that of a folder inside a folder."""
        check = filled(self.check, places)
        return key[0] == self.node and bool(check) and f"{key[1]}/".startswith(f"{check}/")


def smi(fault: str, node: str, check: str, says: str, shown: str) -> Fault:
    """A fault that a node's nvidia-smi shows."""
    return Fault(fault, node, check, says, *shows("smi", shown))


def computes(fault: str, node: str, check: str, says: str, shown: str) -> Fault:
    """A fault of what a node's PyTorch computes, or sends to others."""
    return Fault(fault, node, check, says, *shows("compute", shown))


def shows(tool: str, fault: str = "") -> tuple[str, str]:
    """Let the stand-in of a tool on a node show a fault (node_check_tools.py)."""
    file = f"{'$SITE' if tool == 'compute' else '$BIN'}/$NODE.{tool}"
    text = f"fault='{fault}'" if tool == "smi" else fault
    return f'echo "{text}" >{file}', f"rm -f {file}"


def slow_network(rate: str) -> tuple[str, str]:
    """Let the network of a node send slowly."""
    device = "device=$(ip -o route get 10.77.0.254 | sed 's/.* dev \\([^ ]*\\).*/\\1/')"
    return (
        f"{device}; tc qdisc add dev $device root tbf rate {rate} burst 32kbit latency 400ms",
        f"{device}; tc qdisc del dev $device root",
    )


def bind(path: str, made: str) -> tuple[str, str]:
    """Put another file in place of a file of the node."""
    copy = "/dev/shm/hpcl-" + path.rpartition("/")[2]
    return f"{made} >{copy}; mount --bind {copy} {path}", f"umount {path}; rm -f {copy}"


def freeze() -> tuple[str, str]:
    """Stop all processes of the check shortly after they started."""
    pattern = "'[p]ython3 -I [^ ]*agent.pyz check '"
    loop = f"until [ $(pgrep -fc {pattern}) -gt 3 ]; do sleep 0.02; done; sleep 0.6; pkill -STOP -f {pattern}"
    return f'setsid bash -c "{_inner(loop)}" >/dev/null 2>&1 & echo $! >/dev/shm/loop', (
        _END_LOOP + "; pkill -KILL -f '[p]ython3 -I [^ ]*agent.pyz check '; true"
    )


def _inner(text: str) -> str:
    return text.replace('"', '\\"').replace("$", "\\$")


_END_LOOP = "kill -KILL -- -$(cat /dev/shm/loop) 2>/dev/null; pkill -CONT -f '[p]ython3 -I [^ ]*agent.pyz check '; true"
