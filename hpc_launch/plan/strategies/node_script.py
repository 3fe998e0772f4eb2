"""A script per node, for starting without a scheduler: torchrun with static ranks, or DeepSpeed without ssh."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.base.finding_codes import FindingCode, Severity
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.shell_text import quote

_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*\Z")


class NodeScript(Struct, frozen=True, kw_only=True):
    """A request for the script of one node."""

    script: Annotated[str, Meta(description="The training's Python file, with its path on the node.")]
    num_nodes: Annotated[int, Meta(description="Number of nodes.", ge=1, extra={"names": ["--nodes"]})] = 1
    gpus_per_node: Annotated[
        int, Meta(description="GPUs per node: one process each.", ge=1, extra={"names": ["--num-gpus-per-node"]})
    ] = 1
    master_addr: Annotated[
        str | None, Meta(description="The first node's name or address, as the other nodes reach it.")
    ] = None
    master_port: Annotated[
        int,
        Meta(
            description="A free port on the first node, below 32768: outgoing connections use the ports above.", ge=1024
        ),
    ] = 29500
    node_rank: Annotated[
        int, Meta(description="This node's rank, from 0; rank 0 is the node of --master-addr.", ge=0)
    ] = 0
    use_deepspeed: Annotated[bool, Meta(description="Start with DeepSpeed's launcher instead of torchrun.")] = False
    python: Annotated[str, Meta(description="The Python interpreter of the training.")] = "python3"
    cpus_per_node: Annotated[
        int | None, Meta(description="Cores per node, divided among the processes as threads.", ge=1)
    ] = None
    arguments: Annotated[tuple[str, ...], Meta(description="The training's own arguments.", extra={"rest": True})] = ()


def make(asked: NodeScript) -> tuple[str | None, list[Finding]]:
    """The script; None with findings if it could not start."""
    findings = _check(asked)
    return (None if errors(findings) else _script(asked)), findings


def _check(asked: NodeScript) -> list[Finding]:
    findings: list[Finding] = []

    def fault(code: FindingCode, message: str, option: str, hint: str, severity: Severity = "error") -> None:
        findings.append(Finding(code, message, Place(option), hint, severity))

    if asked.node_rank >= asked.num_nodes:
        message = f"invalid node rank {asked.node_rank} for {asked.num_nodes} nodes"
        hint = f"use 0 to {asked.num_nodes - 1}, a different rank on each node"
        fault(FindingCode.INVALID_NODE_RANK, message, "--node-rank", hint)
    if asked.num_nodes > 1 and asked.master_addr is None:
        hint = "add --master-addr with the name or address of node 0, the same on every node"
        fault(FindingCode.INVALID_RENDEZVOUS, "no rendezvous address given", "--master-addr", hint)
    elif asked.master_addr is not None and not _ADDRESS.match(asked.master_addr):
        hint = "use a name or address such as node1 or 192.168.1.100"
        fault(FindingCode.INVALID_RENDEZVOUS, "not a valid host name or address", "--master-addr", hint)
    elif asked.num_nodes > 1 and (asked.master_addr or "").startswith(("127.", "localhost", "::1")):
        message = f"{asked.master_addr} refers to a different machine on each node"
        hint = "use the name of node 0 as the other nodes reach it"
        fault(FindingCode.INVALID_RENDEZVOUS, message, "--master-addr", hint)
    if asked.master_port > 65535:
        message = f"invalid port {asked.master_port}"
        fault(FindingCode.INVALID_RENDEZVOUS, message, "--master-port", "use 1024 to 32767")
    elif asked.master_port >= 32768:
        message = f"an outgoing connection may occupy port {asked.master_port} at any time"
        fault(FindingCode.INVALID_RENDEZVOUS, message, "--master-port", "use 1024 to 32767", "warning")
    return findings


def _script(asked: NodeScript) -> str:
    address = asked.master_addr or "127.0.0.1"
    name = "DeepSpeed's launcher, static ranks, no ssh" if asked.use_deepspeed else "torchrun, static ranks"
    nodes = f"{asked.num_nodes} node{'s' if asked.num_nodes > 1 else ''} x {asked.gpus_per_node} GPUs"
    head = [
        "#!/bin/bash",
        "# shellcheck disable=SC2016",  # single quotes are intended
        f"# Node {asked.node_rank} of {nodes}, started by hand: {name}.",
        "# Written by hpc-launch config launcher. Start the scripts of all nodes within a few minutes.",
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
    # The launcher would take a name with a leading dash for an option.
    program = [f"./{asked.script}" if asked.script.startswith("-") else asked.script, *asked.arguments]
    lines = [*body, "    " + " ".join(map(quote, program))]
    return "\n".join([*head, "", " \\\n".join(lines)]) + "\n"


def _torchrun(asked: NodeScript) -> list[str]:
    return [
        f"exec {quote(asked.python)} -m torch.distributed.run",
        f"    --nnodes={asked.num_nodes} --nproc-per-node={asked.gpus_per_node} --node-rank={asked.node_rank}",
        '    --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0',
    ]


def _deepspeed(asked: NodeScript) -> list[str]:
    """With --no_ssh, DeepSpeed only counts the lines of the hostfile (deepspeed 0.19.8, launcher/runner.py)."""
    return [
        f"{quote(asked.python)} -m deepspeed.launcher.runner",
        f'    --hostfile="$hostfile" --no_ssh --node_rank={asked.node_rank}',
        '    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT"',
    ]


def _hostfile(asked: NodeScript) -> list[str]:
    return [
        "",
        "# The launcher counts the lines; without ssh it does not use the names.",
        'hostfile=$(mktemp "${TMPDIR:-/tmp}/hostfile.XXXXXX")',
        "trap 'rm -f \"$hostfile\"' EXIT",
        f"for ((node = 0; node < {asked.num_nodes}; node++)); do",
        f"    printf 'node%d slots={asked.gpus_per_node}\\n' \"$node\"",
        'done >"$hostfile"',
    ]
