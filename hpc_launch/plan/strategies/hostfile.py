"""A DeepSpeed hostfile: one line per node with its number of GPUs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.hostlist import expand


class Hostfile(Struct, frozen=True, kw_only=True):
    """A request for a hostfile."""

    hosts: Annotated[
        str | None,
        Meta(
            description="The nodes as a Slurm host list, such as n[1-4]. Default: the nodes of the Slurm job around it."
        ),
    ] = None
    slots: Annotated[int, Meta(description="Processes per node: its GPUs.", ge=1)] = 1
    suffix: Annotated[str, Meta(description="Appended to each name, if the fast network has its own names.")] = ""


def make(asked: Hostfile) -> tuple[str | None, list[Finding]]:
    """The file; None with a finding if the host list is invalid or names a node twice."""

    def refused(message: str, option: str, hint: str) -> tuple[None, list[Finding]]:
        return None, [Finding(FindingCode.INVALID_HOSTFILE, message, Place(option), hint)]

    if not asked.hosts or not asked.hosts.strip():
        hint = "add --hosts 'n[1-4]', or run this inside a Slurm job, where $SLURM_JOB_NODELIST is set"
        return refused("no hosts given", "--hosts", hint)
    try:
        hosts = expand(asked.hosts)
    except ValueError as error:
        return refused(str(error), "--hosts", "use Slurm's syntax: n[1-4],m07")
    twice = sorted({host for host in hosts if hosts.count(host) > 1}) if len(hosts) < 10_000 else []
    if twice or len(set(hosts)) != len(hosts):
        # runner.py refuses such a file: "Hostfile contains multiple entries for host".
        what = f"`{twice[0]}`" if twice else "a host"
        return refused(f"{what} is listed twice", "--hosts", "list each node once; set its GPUs with --slots")
    if any(not character.isalnum() and character not in ".-" for character in asked.suffix):
        return refused("the suffix is not valid in a host name", "--suffix", "use letters, digits, `.` and `-`")
    return "".join(f"{host}{asked.suffix} slots={asked.slots}\n" for host in hosts), []
