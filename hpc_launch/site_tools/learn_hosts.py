"""Learn a site without a scheduler: query the hosts of a host file over ssh, and draft a profile of what they answer,
each key with its source.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import read_text
from hpc_launch.base.findings import Finding, FindingCode, Place, errors
from hpc_launch.base.installed import AGENT
from hpc_launch.job.hostlist import SlotHost, compress, read_hostfile
from hpc_launch.job.units import counted
from hpc_launch.prepare.prepare import this_machine
from hpc_launch.schedulers.ssh.ssh_hosts import TWICE_HINT, HostReply, ask_hosts, one_machine
from hpc_launch.site_tools.draft_profile import LearnContext, ProfileDraft, profile_name
from hpc_launch.site_tools.draft_queues import Hardware
from hpc_launch.site_tools.host_facts import (
    HostDifference,
    HostFacts,
    common,
    common_network,
    differences,
    drivers,
    home,
    models,
    read_facts,
)
from hpc_launch.sites.this_machine import MAX_HOSTFILE_BYTES, names

PROGRAM = AGENT / "describe_host.py"
DESCRIBE_S = 60.0
PROBE_S = 30.0
"""Limits of one query of one host, in seconds."""
_FOLDER = re.compile(r"/[ -~]{0,99}\Z")


@dataclass
class LearnedHosts:
    """Result: the draft, what the hosts answered, why others did not, and the hosts that share each folder."""

    draft: ProfileDraft
    hosts: Mapping[str, HostFacts]
    faults: Mapping[str, str]
    folders: Mapping[str, tuple[str, ...]]

    @property
    def differences(self) -> list[HostDifference]:
        """Where the hosts differ."""
        return differences(self.hosts, self.folders)

    def as_json(self) -> dict[str, object]:
        """Output of `sites learn --hostfile FILE --json`, except for the file name."""
        facts = msgspec.to_builtins(self.hosts)
        return {
            "name": self.draft.name,
            "status": self.draft.data["status"],
            "hosts": {host: {key: one[key] for key in one if key != "machine"} for host, one in facts.items()},
            "unreachable": dict(self.faults),
            "folders": {path: list(sharing) for path, sharing in self.folders.items()},
            "differences": msgspec.to_builtins(self.differences),
        }


def learn_hosts(file: Path, name: str | None) -> LearnedHosts:
    """Query the hosts of a host file, and draft a profile of those that answer.

    Raises UsageError for an invalid name or file or if no host answers, Refused for invalid lines of the file and for
    a machine that has two.
    """
    name = profile_name(name, file.stem)
    listed = _read(file)
    hosts, faults = _describe([host.name for host in listed])
    if not hosts:
        host, fault = next(iter(faults.items()))
        raise UsageError(f"no host answers; {host}: {fault}", f"`ssh -o BatchMode=yes {host} true` must work")
    twice = one_machine({host: facts.machine for host, facts in hosts.items()})
    if twice:
        raise Refused(
            [Finding(FindingCode.INVALID_HOSTFILE, text, Place(str(file)), TWICE_HINT) for text in twice.values()]
        )
    values = names(os.environ)
    wanted = Path(values["runs"])
    runs = str(next(folder for folder in (wanted, *wanted.parents) if os.path.isdir(folder)))
    folders = _shared_folders(hosts, [runs, os.getcwd()])
    context = LearnContext(values["user"], frozenset(), this_machine().hosts[0], time.strftime("%Y-%m-%d"))
    draft = draft_hosts(name, listed, hosts, faults, folders, runs, context)
    return LearnedHosts(draft, hosts, faults, folders)


def _read(file: Path) -> tuple[SlotHost, ...]:
    try:
        text = read_text(file, longest=MAX_HOSTFILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}", "name a file with one host per line: `NAME slots=N`") from None
    listed, findings = read_hostfile(text, str(file), slots_required=False)
    if errors(findings):
        raise Refused(findings)
    return listed


def _describe(hosts: Sequence[str]) -> tuple[dict[str, HostFacts], dict[str, str]]:
    """What the hosts answer, and why others do not."""
    found: dict[str, HostFacts] = {}
    faults: dict[str, str] = {}
    for host, reply in ask_hosts(hosts, PROGRAM, ["describe", sys.executable], DESCRIBE_S).items():
        try:
            if reply.fault is not None:
                raise ValueError(reply.fault)
            found[host] = read_facts(reply.text)
        except ValueError as error:
            faults[host] = str(error)
    return found, faults


def _shared_folders(hosts: Mapping[str, HostFacts], more: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The hosts that share each folder with the first one: they see the file that it writes there."""
    first, *others = hosts
    # No host names folders for another one.
    paths = [path for path in dict.fromkeys([*hosts[first].folders, *more]) if _FOLDER.match(path)]
    token = secrets.token_hex(8)
    try:
        written = _seen(ask_hosts([first], PROGRAM, ["write", token, *paths], PROBE_S))[first]
        there = [path for path in paths if path in written]
        seen = _seen(ask_hosts(others, PROGRAM, ["read", token, *there], PROBE_S)) if there else {}
    finally:  # also where no answer said that it was written
        ask_hosts([first], PROGRAM, ["remove", token, *paths], PROBE_S)
    return {path: (first, *(host for host in others if path in seen.get(host, ()))) for path in there}


def _seen(replies: Mapping[str, HostReply]) -> dict[str, frozenset[str]]:
    """The folders in which each host did what it was asked."""
    found = {}
    for host, reply in replies.items():
        try:
            done = msgspec.json.decode(reply.text, type=dict[str, bool])
        except msgspec.MsgspecError:
            done = {}
        found[host] = frozenset(path for path, value in done.items() if value)
    return found


CLASS = "host"
RUNTIMES = ("apptainer", "singularity")
"""Container runtimes that work without a scheduler, preferred first."""


def draft_hosts(  # noqa: PLR0917 - what a profile is made of
    name: str,
    listed: Sequence[SlotHost],
    hosts: Mapping[str, HostFacts],
    faults: Mapping[str, str],
    folders: Mapping[str, tuple[str, ...]],
    runs: str,
    context: LearnContext,
) -> ProfileDraft:
    """Draft the profile.

    `listed`: the hosts of the host file; 0 slots if it states none. `hosts`: those that answered. `faults`: why the
    others did not. `folders`: the hosts that share each. `runs`: the existing folder for this user's runs.
    """
    result = ProfileDraft(name)
    result.remarks = [
        f"Drafted by `hpc-launch sites learn --hostfile` on {context.host}, {context.day}, by the hosts' answers.",
        "Sources: nvidia-smi or the files of AMD's driver, /proc and /sys, the interpreters themselves, and a probe",
        "file in each folder. Correct what you know better, and note it under `facts:`.",
    ]
    result.put_identity(f"{counted(len(hosts), 'host')} without a scheduler", context)
    result.put("ssh", "scheduler", "type")
    _hosts(result, listed, hosts)
    _node_class(result, [host.slots for host in listed if host.name in hosts], hosts)
    result.put({"node_class": CLASS, "memory": "omit"}, "queues", "all")
    _software(result, hosts)
    _folders(result, hosts, folders, runs)
    _unknown(result, hosts, faults)
    for one in differences(hosts, folders):
        values = "; ".join(f"{value} on {compress(names)}" for value, names in one.values.items())
        result.remarks.append(f"The hosts differ in {one.fact}: {values}.")
    return result


def _hosts(result: ProfileDraft, listed: Sequence[SlotHost], hosts: Mapping[str, HostFacts]) -> None:
    networks = common_network(dict(hosts))
    for host in listed:
        if host.name not in hosts:
            continue
        facts, interface = hosts[host.name], networks.get(host.name)
        value: dict[str, object] = {"slots": host.slots or len(facts.gpus) or 1}
        if interface is not None:
            value |= {"address": interface.address, "interface": interface.name}
        result.put(value, "scheduler", "hosts", host.name, note=_described(host, facts))
    if networks:
        first = next(iter(networks.values()))
        slowest = min(one.speed for one in networks.values())
        speed = f", {slowest} Mb/s" if slowest else ", speed unknown"
        note = f"addresses and interfaces in {first.network}{speed}: the fastest network that all hosts are in"
        result.notes["scheduler", "hosts"] = note


def _described(host: SlotHost, facts: HostFacts) -> str:
    slots = "slots: the host file" if host.slots else "slots: its GPUs" if facts.gpus else "slots: no GPU found"
    gpus = f"{len(facts.gpus)} x {models(facts)}, driver {drivers(facts)}; " if facts.gpus else ""
    return f"{slots}; {gpus}{facts.cpus} CPUs"


def _node_class(result: ProfileDraft, slots: Sequence[int], hosts: Mapping[str, HostFacts]) -> None:
    """The class of all hosts: what the smallest of them has."""
    every = list(hosts.values())
    gpus = [gpu for facts in every for gpu in facts.gpus]
    kind = common(match and match[0] for match in (re.search(r"\b[A-Z]{1,3}\d{2,4}\b", gpu.model) for gpu in gpus))
    smallest = Hardware(
        cpus=min(facts.cpus for facts in every),
        threads_per_core=min(facts.threads_per_core for facts in every),
        memory=min(facts.memory or 0 for facts in every),
        arch=common(facts.arch for facts in every),
        gpus=max(*slots, *(len(facts.gpus) for facts in every)) if gpus else 0,
        gpu_type=kind and kind.lower(),
    )
    notes = {
        "cpus": "of the smallest host; sched_getaffinity",
        "threads_per_core": "/sys: smt/active",
        "memory": "MemTotal of the smallest host",
        "gpus": "of the host with the most; `slots` counts on each host",
        "gpu_type": "from the model's name",
    }
    result.put_node_class(CLASS, smallest, notes)
    if gpus:
        result.put_gpus(gpus, CLASS, "of the smallest GPU")
    fabric = common(facts.fabric for facts in every)
    result.put_fabric(None if fabric == "ethernet" else fabric)


def _software(result: ProfileDraft, hosts: Mapping[str, HostFacts]) -> None:
    every = list(hosts.values())
    runtime = next((name for name in RUNTIMES if all(name in facts.runtimes for facts in every)), None)
    result.put(runtime, "containers", "runtime", note="found on all hosts")
    torch = {facts.launcher_python.torch if facts.launcher_python else "" for facts in every}
    if "" not in torch and not all(facts.python is not None and facts.python.torch for facts in every):
        note = f"the interpreter of hpc-launch has PyTorch {', '.join(sorted(torch))} on all hosts; python3 has not"
        result.put("${launcher.python}", "defaults", "environment", "python", note=note)


def _folders(
    result: ProfileDraft, hosts: Mapping[str, HostFacts], folders: Mapping[str, tuple[str, ...]], runs: str
) -> None:
    """Which folders are shared, and where the runs are, if not all hosts share the home and the folder `runs`."""
    if len(hosts) < 2:
        return
    shared = [path for path, names in folders.items() if len(names) == len(hosts)]
    result.remarks.append(f"Folders that all hosts share: {', '.join(shared) or 'none'}.")
    others = [path for path in shared if path != home(hosts) and re.fullmatch(r"[A-Za-z0-9/._-]+", path)]
    own = [path for path in (runs, home(hosts)) if path not in shared and (path == runs or path in folders)]
    if not own:
        return
    note = f"{own[0]} is another folder on each host"
    if not others:
        result.put(False, "scheduler", "shared_folders", note=f"{note}; jobs copy their run folder")
        return
    result.put(others, "scheduler", "shared_folders", note=note)
    if own[0] == runs:
        path = f"{others[0]}/${{user}}/hpc-launch/runs"
        result.put(path, "defaults", "run_dir", note="a folder that all hosts share")


def _unknown(result: ProfileDraft, hosts: Mapping[str, HostFacts], faults: Mapping[str, str]) -> None:
    lines = [f"{name}: left out, {fault}" for name, fault in faults.items()]
    lines += [f"{name}: {fault}" for name, facts in hosts.items() for fault in facts.faults]
    if not common_network(dict(hosts)) and len(hosts) > 1:
        lines.append("a network that all hosts are in: jobs use the default interfaces")
    result.put([line.replace("${", "$ {") for line in lines] or None, "unknown")
