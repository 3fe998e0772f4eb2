"""Learn a site: query the login node, draft a profile, run jobs on the nodes and write the profile.

Learn a site without a scheduler: query the hosts of a host file over ssh, and draft a profile.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hpc_launch.base.errors import Refused, SchedulerError, UsageError
from hpc_launch.base.files import read_text, write_atomic, write_output
from hpc_launch.base.findings import errors
from hpc_launch.base.installed import AGENT
from hpc_launch.base.user_dirs import config_folder, make_folder
from hpc_launch.job.hostlist import SlotHost, read_hostfile
from hpc_launch.job.units import parse_time
from hpc_launch.prepare.prepare import prepare_job, this_machine
from hpc_launch.schedulers.scheduler import Scheduler, Submission
from hpc_launch.schedulers.slurm.query_cluster import Survey, survey
from hpc_launch.schedulers.ssh.ssh_command import HostReply, ask_hosts
from hpc_launch.site_tools.learning.draft_hosts import draft_hosts
from hpc_launch.site_tools.learning.draft_profile import LearnContext, ProfileDraft, can_do, draft, profile_name
from hpc_launch.site_tools.learning.host_facts import (
    HostDifference,
    HostFacts,
    differences,
    inspect_login_node,
    read_facts,
)
from hpc_launch.site_tools.learning.measured_facts import add_measurements
from hpc_launch.site_tools.learning.probe_jobs import (
    ProbeContext,
    ProbeRequest,
    ProbeResult,
    run_probe_jobs,
    shared_base,
)
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


REQUEST_FORMS = ("gpus-per-node", "gpus-per-node-type", "gres", "gres-type", "gpus", "none")


def choose_gpu_requests(draft: ProfileDraft, scheduler: Scheduler) -> None:
    """Test the GPU request of each node class with `sbatch --test-only`, then alternatives. Keep the first accepted
    one.

    If none is accepted, or sbatch does not respond, keep the original and note the error.
    """
    for name, node in draft.data["node_classes"].items():
        queue = next((key for key, one in draft.data["queues"].items() if one["node_class"] == name), None)
        if not node.get("gpus") or queue is None:
            continue
        first = node["gpu_request"]
        path = ("node_classes", name, "gpu_request")
        first_error: str | None = None
        for form in _candidates(first, typed="gpu_type" in node):
            draft.put(form, *path)
            rejection = _rejection(draft, queue, scheduler)
            if rejection is None:
                draft.notes[path] = f"{draft.notes.get(path, '')}; accepted by sbatch --test-only".lstrip("; ")
                break
            first_error = first_error or rejection
        else:
            draft.put(first, *path)
            draft.notes[path] = f"{draft.notes.get(path, '')}; sbatch --test-only failed: {first_error}".lstrip("; ")


def _candidates(first: str, *, typed: bool) -> Iterator[str]:
    """The form suggested by Slurm's settings, then the others. A request with the GPU type keeps the type."""
    yield first
    for form in REQUEST_FORMS:
        with_type = form.endswith("-type")
        if form != first and (typed or not with_type) and (with_type or not first.endswith("-type")):
            yield form


def _rejection(draft: ProfileDraft, queue: str, scheduler: Scheduler) -> str | None:
    """Why sbatch would reject a job in the queue, or None if it accepts it."""
    with tempfile.TemporaryDirectory(prefix="hpc-launch-") as folder:
        profile, job = Path(folder, f"{draft.name}.yaml"), Path(folder, "job.yaml")
        write_atomic(profile, draft.text())
        job_keys = {"name": "dialect", "queue": queue, "nodes": 1, "time": "00:01:00", "launcher": "srun"}
        write_atomic(job, json.dumps({**job_keys, "command": ["true"]}))
        try:
            prepared_job = prepare_job(job, site=str(profile))
            scheduler.test_only(Submission(prepared_job.script, Path(folder), prepared_job.plan.name))
        except (Refused, SchedulerError) as error:
            return str(error)
    return None


@dataclass
class LearnedSite:
    """Result: the draft, the survey it is based on, and errors on the nodes."""

    draft: ProfileDraft
    survey: Survey
    context: LearnContext
    probe_results: list[ProbeResult] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def learn(name: str | None, scheduler: Scheduler) -> LearnedSite:
    """Draft a profile of this cluster. `scheduler` tests whether it would accept the profile's jobs.

    Raises UsageError for an invalid name, Unreachable if Slurm is not installed or does not respond.
    """
    if name is not None and name != profile_name(name):
        raise UsageError(f"{name!r} is not a valid profile name", "use letters, digits, dots, dashes and underscores")
    user = names(os.environ)["user"]
    cluster = survey(user)
    context = LearnContext(user, user_groups(), this_machine().hosts[0], time.strftime("%Y-%m-%d"))
    profile_draft = draft(name or profile_name(cluster.name), cluster, inspect_login_node(os.environ), context)
    if not profile_draft.data["queues"]:
        raise UsageError(
            "you have no access to any partition of this cluster", "check `sinfo -a`, or ask for an account"
        )
    choose_gpu_requests(profile_draft, scheduler)
    return LearnedSite(profile_draft, cluster, context)


def target(name: str) -> Path:
    """Default file of a profile: among the user's own."""
    return config_folder() / "sites" / f"{name}.yaml"


def save(draft: ProfileDraft, path: Path) -> None:
    """Write the profile. Raises UsageError if that is not possible."""
    try:
        make_folder(path.parent)
        write_output(path, draft.text())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "use -o FILE to write another file") from error


def measure(
    learned: LearnedSite, path: Path, partitions: Sequence[str], patience_s: float, context: ProbeContext
) -> None:
    """Run a two-node job in each partition with the profile in `path`, and add the measurements to the draft."""
    folders = {"home": os.path.expanduser("~")}
    for key in learned.draft.data.get("paths", {}):
        variable = learned.draft.data["paths"][key].removeprefix("${env.").removesuffix("}")
        folders[key] = os.environ.get(variable, "")
    base = shared_base(learned.draft.name)
    learned.probe_results = run_probe_jobs(path, requests(learned, partitions), folders, base, patience_s, context)
    learned.faults = add_measurements(learned.draft, learned.probe_results, learned.context.day, learned.context.user)


def requests(learned: LearnedSite, partitions: Sequence[str]) -> list[ProbeRequest]:
    """One queue for each type of node in each requested partition, by default in all partitions.

    Raises UsageError for a partition that the draft does not contain.
    """
    queues = learned.draft.data["queues"]
    partition_names = {queue["partition"] for queue in queues.values()}
    for name in partitions:
        if name not in partition_names:
            raise UsageError(
                f"you have no access to a partition {name}",
                f"available partitions: {', '.join(sorted(partition_names))}",
            )
    cluster = []
    for name, queue in queues.items():
        if "qos" not in queue and (not partitions or queue["partition"] in partitions):
            row = queue["limits"][0]
            max_nodes = int(row["nodes"].rpartition("-")[2])
            cluster.append(ProbeRequest(name, min(max_nodes, 2), parse_time(row["time"]) if "time" in row else None))
    return cluster


def summary(learned: LearnedSite) -> dict[str, object]:
    """Output of `sites learn --json`, except for the file name."""
    data = learned.draft.data
    return {
        "name": learned.draft.name,
        "status": data["status"],
        "slurm": learned.survey.version,
        "can": dict(can_do(learned.survey)),
        "node_classes": list(data["node_classes"]),
        "queues": list(data["queues"]),
        "accounts": list(learned.survey.accounting.accounts) if learned.survey.accounting else [],
        "unknown": data.get("unknown", []),
        "jobs": [{"queue": one.queue, "run": one.run, "fault": one.fault} for one in learned.probe_results],
        "faults": learned.faults,
    }


def user_groups() -> frozenset[str]:
    """Names of this user's groups."""
    import grp

    cluster = set()
    for number in {os.getgid(), *os.getgroups()}:
        try:
            cluster.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return frozenset(cluster)
