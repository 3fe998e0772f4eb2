"""A script a node for a start by hand, without any scheduler: torchrun with static ranks, or DeepSpeed without ssh."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.plan.strategies.keys import flag
from hpc_launch.spec.shell_text import quote

_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*\Z")


class Start(Struct, frozen=True, kw_only=True):
    """One node's part of a start by hand."""

    script: Annotated[str, Meta(description="The training's Python file, as the node sees it.")]
    num_nodes: Annotated[int, Meta(description="Nodes in all.", ge=1, extra={"names": ["--nodes"]})] = 1
    gpus_per_node: Annotated[
        int, Meta(description="GPUs of a node: its processes.", ge=1, extra={"names": ["--num-gpus-per-node"]})
    ] = 1
    master_addr: Annotated[
        str | None, Meta(description="The first node's name or address, as the others reach it.")
    ] = None
    master_port: Annotated[
        int, Meta(description="A free port on the first node; below 32768, where outgoing connections begin.", ge=1024)
    ] = 29500
    node_rank: Annotated[int, Meta(description="This node's number, from 0; 0 is the one of --master-addr.", ge=0)] = 0
    use_deepspeed: Annotated[bool, Meta(description="Start with DeepSpeed's launcher in place of torchrun.")] = False
    python: Annotated[str, Meta(description="The Python interpreter of the training.")] = "python3"
    cpus_per_node: Annotated[
        int | None, Meta(description="Cores of a node, shared out to the processes as threads.", ge=1)
    ] = None
    arguments: Annotated[tuple[str, ...], Meta(description="The training's own arguments.", extra={"rest": True})] = ()


def make(asked: Start) -> tuple[str | None, list[Finding]]:
    """The script; None with findings where it could not start."""
    findings = _check(asked)
    return (None if errors(findings) else _script(asked)), findings


def _check(asked: Start) -> list[Finding]:
    findings = []

    def fault(code: str, message: str, place: Place, hint: str) -> None:
        findings.append(Finding(code, message, place, hint))

    if asked.node_rank >= asked.num_nodes:
        message = f"there is no node {asked.node_rank} among {asked.num_nodes}"
        fault(
            "HL661",
            message,
            flag("--node-rank"),
            f"ranks go from 0 to {asked.num_nodes - 1}, each on a node of its own",
        )
    if asked.num_nodes > 1 and asked.master_addr is None:
        hint = "add --master-addr with the name or address of node 0; the same on every node"
        fault("HL662", "the nodes do not know where to meet", flag("--master-addr"), hint)
    elif asked.master_addr is not None and not _ADDRESS.match(asked.master_addr):
        fault("HL662", "this is no host name and no address", flag("--master-addr"), "such as node1 or 192.168.1.100")
    elif asked.num_nodes > 1 and (asked.master_addr or "").startswith(("127.", "localhost", "::1")):
        message = f"{asked.master_addr} means this machine to every node"
        fault("HL662", message, flag("--master-addr"), "name node 0 as the others reach it")
    if asked.master_port > 65535:
        fault("HL662", f"there is no port {asked.master_port}", flag("--master-port"), "1024 to 32767")
    elif asked.master_port >= 32768:
        message = f"port {asked.master_port} may be taken by an outgoing connection at any time"
        findings.append(Finding("HL662", message, flag("--master-port"), "use 1024 to 32767", "warning"))
    return findings


def _script(asked: Start) -> str:
    address = asked.master_addr or "127.0.0.1"
    name = "DeepSpeed, told its rank: no ssh between nodes" if asked.use_deepspeed else "torchrun, static ranks"
    nodes = f"{asked.num_nodes} node{'s' if asked.num_nodes > 1 else ''} x {asked.gpus_per_node} GPUs"
    head = [
        "#!/bin/bash",
        "# shellcheck disable=SC2016",  # what stands in single quotes is meant so
        f"# Node {asked.node_rank} of {nodes}, started by hand with {name}.",
        "# Written by hpc-launch config launcher. Start each node's script within a few minutes of the others.",
        "set -euo pipefail",
        "",
        f"export MASTER_ADDR={quote(address)} MASTER_PORT={asked.master_port}",
        "export PYTHONUNBUFFERED=1",
    ]
    if asked.cpus_per_node is not None:
        threads = max(asked.cpus_per_node // asked.gpus_per_node, 1)
        head.append(
            f"export OMP_NUM_THREADS={threads} # {asked.cpus_per_node} cores for {asked.gpus_per_node} processes"
        )
    if asked.use_deepspeed:
        head += _hostfile(asked)
    body = _deepspeed(asked) if asked.use_deepspeed else _torchrun(asked)
    # A name with a dash in front would be an option of the launcher.
    program = [f"./{asked.script}" if asked.script.startswith("-") else asked.script, *asked.arguments]
    lines = [*body, "    " + " ".join(map(quote, program))]
    return "\n".join([*head, "", " \\\n".join(lines)]) + "\n"


def _torchrun(asked: Start) -> list[str]:
    return [
        f"exec {quote(asked.python)} -m torch.distributed.run",
        f"    --nnodes={asked.num_nodes} --nproc-per-node={asked.gpus_per_node} --node-rank={asked.node_rank}",
        '    --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0',
    ]


def _deepspeed(asked: Start) -> list[str]:
    """deepspeed 0.19.8, launcher/runner.py: --no_ssh takes the number of nodes from a hostfile, and only counts it."""
    return [
        f"{quote(asked.python)} -m deepspeed.launcher.runner",
        f'    --hostfile="$hostfile" --no_ssh --node_rank={asked.node_rank}',
        '    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT"',
    ]


def _hostfile(asked: Start) -> list[str]:
    return [
        "",
        "# The launcher counts the lines; without ssh it uses no name in them.",
        'hostfile=$(mktemp "${TMPDIR:-/tmp}/hostfile.XXXXXX")',
        "trap 'rm -f \"$hostfile\"' EXIT",
        f"for ((node = 0; node < {asked.num_nodes}; node++)); do",
        f"    printf 'node%d slots={asked.gpus_per_node}\\n' \"$node\"",
        'done >"$hostfile"',
    ]
