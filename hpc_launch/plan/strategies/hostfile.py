"""A hostfile in DeepSpeed's form: a line for each node with its number of GPUs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.base.findings import Finding
from hpc_launch.plan.strategies.keys import flag
from hpc_launch.spec.hostlist import expand


class Hostfile(Struct, frozen=True, kw_only=True):
    """The nodes of a hostfile."""

    hosts: Annotated[
        str | None,
        Meta(description="The nodes as a Slurm host list, such as n[1-4]. Inside a job its own if left out."),
    ] = None
    slots: Annotated[int, Meta(description="Processes on each node: its GPUs.", ge=1)] = 1
    suffix: Annotated[str, Meta(description="Put behind each name, where the fast network has names of its own.")] = ""


def make(asked: Hostfile) -> tuple[str | None, list[Finding]]:
    """The file; None with a finding for a host list that is none, or that names a node twice."""
    place = flag("--hosts")
    if not asked.hosts or not asked.hosts.strip():
        hint = "add --hosts 'n[1-4]', or call this inside a job, where $SLURM_JOB_NODELIST is set"
        return None, [Finding("HL660", "no node is named", place, hint)]
    try:
        hosts = expand(asked.hosts)
    except ValueError as error:
        return None, [Finding("HL660", str(error), place, "write it as Slurm does: n[1-4],m07")]
    twice = sorted({host for host in hosts if hosts.count(host) > 1}) if len(hosts) < 10_000 else []
    if twice or len(set(hosts)) != len(hosts):
        # runner.py refuses such a file: "Hostfile contains multiple entries for host".
        what = f"`{twice[0]}`" if twice else "a node"
        return None, [
            Finding("HL660", f"{what} is there twice", place, "name each node once; use --slots for its GPUs")
        ]
    if any(not character.isalnum() and character not in ".-" for character in asked.suffix):
        return None, [Finding("HL660", "the suffix cannot be part of a host name", flag("--suffix"), "such as `i`")]
    return "".join(f"{host}{asked.suffix} slots={asked.slots}\n" for host in hosts), []
