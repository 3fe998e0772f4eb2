"""Learn a site without a scheduler: query the hosts of a host file over ssh, and draft a profile."""

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
from hpc_launch.base.findings import errors
from hpc_launch.base.installed import AGENT
from hpc_launch.job.hostlist import SlotHost, read_hostfile
from hpc_launch.prepare.detect_site import this_machine
from hpc_launch.schedulers.ssh.ssh_command import HostReply, ask_hosts
from hpc_launch.site_tools.learning.draft_hosts import draft_hosts
from hpc_launch.site_tools.learning.draft_profile import LearnContext, ProfileDraft, profile_name
from hpc_launch.site_tools.learning.host_facts import HostDifference, HostFacts, differences, read_facts
from hpc_launch.sites.choose_hosts import MAX_HOSTFILE_BYTES
from hpc_launch.sites.this_machine import names

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
        """Output of `sites learn --hosts FILE --json`, except for the file name."""
        return {
            "name": self.draft.name,
            "status": self.draft.data["status"],
            "hosts": msgspec.to_builtins(self.hosts),
            "unreachable": dict(self.faults),
            "folders": {path: list(sharing) for path, sharing in self.folders.items()},
            "differences": msgspec.to_builtins(self.differences),
        }


def learn_hosts(file: Path, name: str | None) -> LearnedHosts:
    """Query the hosts of a host file, and draft a profile of those that answer.

    Raises UsageError for an invalid name or file or if no host answers, Refused for invalid lines of the file.
    """
    name = name if name is not None else profile_name(file.stem)
    if name != profile_name(name):
        raise UsageError(f"{name!r} is not a valid profile name", "use letters, digits, dots, dashes and underscores")
    listed = _read(file)
    hosts, faults = _describe([host.name for host in listed])
    if not hosts:
        host, fault = next(iter(faults.items()))
        raise UsageError(f"no host answers; {host}: {fault}", f"`ssh -o BatchMode=yes {host} true` must work")
    values = names(os.environ)
    runs = _existing(values["runs"])
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
        paths = [path for path in paths if path in written]
        seen = _seen(ask_hosts(others, PROGRAM, ["read", token, *paths], PROBE_S)) if paths else {}
    finally:
        ask_hosts([first], PROGRAM, ["remove", token, *paths], PROBE_S)
    return {path: (first, *(host for host in others if path in seen.get(host, ()))) for path in paths}


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


def _existing(path: str) -> str:
    """The folder, or the nearest one above it that exists."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path
