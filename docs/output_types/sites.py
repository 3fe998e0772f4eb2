"""What `sites` and `nodes` print with `--json`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from docs.output_types.base import Evidence, Finding, Output, doc


class Profile(Output):
    """A site profile in the list."""

    name: Annotated[str, doc("its name")]
    kind: Annotated[Literal["system", "template", "base"], doc("what it describes")]
    title: Annotated[str, doc("its title")]
    grade: Annotated[str | None, doc("the [grade](sites/README.md) of its evidence")]
    as_of: Annotated[str | None, doc("the date of its facts")]
    status: Annotated[
        str,
        doc("its status; `broken` if it is invalid"),
    ]
    layer: Annotated[str, doc("the source that it comes from")]
    basis: Annotated[
        Literal["tried", "centre", "others"] | None,
        doc("what it rests on: `tried` on the system, the pages of the `centre`, or the scripts of `others`"),
    ]


class Match(Output):
    """A profile that matches this machine."""

    site: Annotated[str, doc("its name")]
    way: Annotated[str, doc("how it was detected")]
    because: Annotated[str, doc("an explanation, as text for people")]


class UnreadProfile(Output):
    """A profile with an invalid `detect:`."""

    file: Annotated[str, doc("its file")]
    fault: Annotated[str, doc("what is wrong")]


class Detected(Output):
    """The detected site. If `site` is null, the exit code is 3, or 4 with `unreachable`."""

    site: Annotated[str | None, doc("the matching profile; null if none or several match")]
    file: Annotated[str | None, doc("its file")]
    way: Annotated[
        str | None,
        doc("how it was detected: `variable`, `host`, `path`, `cluster`, or `local` without Slurm"),
    ]
    because: Annotated[str | None, doc("an explanation, as text for people")]
    matches: Annotated[list[Match], doc("all profiles that match in that way")]
    cluster: Annotated[str | None, doc("Slurm's cluster name, if it was queried")]
    unreachable: Annotated[
        str | None,
        doc("why the cluster's name is not known, if the controller was queried and did not answer"),
    ]
    hint: Annotated[str | None, doc("what to do if no profile was chosen")]
    unread: Annotated[list[UnreadProfile], doc("profiles with an invalid `detect:`")]


class Change(Output):
    """A key that differs between two profiles."""

    key: Annotated[str, doc("the dotted key")]
    old: Annotated[Any, doc("its value in the first profile; null if it is not set")]
    new: Annotated[Any, doc("its value in the second profile; null if it is not set")]
    old_origin: Annotated[str | None, doc("where the old value was set")]
    new_origin: Annotated[str | None, doc("where the new value was set")]


class ProfileDifference(Output):
    """How two profiles differ."""

    profile: Annotated[str, doc("the profile")]
    changes: Annotated[list[Change], doc("the keys that differ")]
    scripts: Annotated[dict[str, list[str]], doc("lines of the difference between the scripts, by small job")]
    note: Annotated[str | None, doc("why the profiles could not be compared further")]


class Drift(Output):
    """A value in which a profile differs from its cluster."""

    site: Annotated[str, doc("the profile")]
    key: Annotated[str, doc("its key")]
    profile: Annotated[str | None, doc("the value in the profile; null if it has none")]
    cluster: Annotated[str | None, doc("the value on the cluster; null if it has none")]
    effect: Annotated[str, doc("what follows from the difference, as text for people")]


class ProbeJob(Output):
    """A job of `sites learn --smoke`."""

    queue: Annotated[str, doc("the partition")]
    run: Annotated[str | None, doc("its run")]
    fault: Annotated[str | None, doc("what went wrong")]


class LearnedCluster(Output):
    """A profile drafted from Slurm."""

    file: Annotated[str, doc("the profile that was written")]
    name: Annotated[str, doc("its name")]
    status: Annotated[str, doc("its status")]
    slurm: Annotated[str, doc("the version of Slurm")]
    node_classes: Annotated[list[str], doc("names of the node classes")]
    queues: Annotated[list[str], doc("names of the queues")]
    accounts: Annotated[list[str], doc("the user's accounts")]
    unknown: Annotated[list[str], doc("what could not be found out")]
    jobs: Annotated[list[ProbeJob], doc("the jobs of `--smoke`")]
    faults: Annotated[list[str], doc("what failed, as text for people")]


class HostGpu(Output):
    """A GPU of a host."""

    vendor: Annotated[Literal["nvidia", "amd"], doc("its vendor")]
    model: Annotated[str, doc("its model")]
    memory: Annotated[int, doc("MiB; 0 if unknown")]
    driver: Annotated[str, doc("version of its driver")]


class HostInterface(Output):
    """A network interface of a host."""

    name: Annotated[str, doc("its name")]
    address: Annotated[str, doc("its IPv4 address")]
    prefix: Annotated[int, doc("length of the network's prefix")]
    speed: Annotated[int, doc("Mb/s; 0 if unknown")]


class PythonVersions(Output):
    """A Python interpreter."""

    version: Annotated[str, doc("its version")]
    torch: Annotated[str, doc("version of its PyTorch; empty if it has none")]


class HostFacts(Output):
    """What a host answered. A fact that could not be found out is null."""

    cpus: Annotated[int, doc("number of CPUs")]
    threads_per_core: Annotated[int, doc("hardware threads of a core")]
    memory: Annotated[int | None, doc("MiB")]
    arch: Annotated[str | None, doc("architecture of the CPUs")]
    gpus: Annotated[list[HostGpu], doc("its GPUs")]
    interfaces: Annotated[list[HostInterface], doc("its network interfaces")]
    fabric: Annotated[str | None, doc("family of the fast network, by the adapters")]
    python: Annotated[PythonVersions | None, doc("its `python3`")]
    launcher_python: Annotated[
        PythonVersions | None, doc("the interpreter that runs hpc-launch here, at the same path there")
    ]
    pdsh: Annotated[str | None, doc("how pdsh connects by default")]
    runtimes: Annotated[list[str], doc("its container runtimes")]
    folders: Annotated[list[str], doc("folders that it may share with others; the first one is the user's home")]
    faults: Annotated[list[str], doc("what it could not find out")]


class HostDifference(Output):
    """A fact that is not the same on all hosts."""

    fact: Annotated[str, doc("the fact")]
    values: Annotated[dict[str, list[str]], doc("the hosts of each value, the most frequent value first")]


class LearnedHosts(Output):
    """A profile drafted from the hosts of `--hostfile FILE`."""

    file: Annotated[str, doc("the profile that was written")]
    name: Annotated[str, doc("its name")]
    status: Annotated[str, doc("its status")]
    hosts: Annotated[dict[str, HostFacts], doc("what each host answered, by name")]
    unreachable: Annotated[dict[str, str], doc("why the others did not answer, by name")]
    folders: Annotated[dict[str, list[str]], doc("the hosts that share each folder")]
    differences: Annotated[list[HostDifference], doc("facts that are not the same on all hosts")]


class TeamAdded(Output):
    """A team's profiles."""

    name: Annotated[str, doc("name of the team, or of a single profile")]
    url: Annotated[str, doc("the repository, folder or file")]
    revision: Annotated[str | None, doc("the revision that was asked for; null for a folder or file")]
    commit: Annotated[str | None, doc("the pinned commit, or the digest of a file; null for a folder")]
    profiles: Annotated[list[str], doc("names of its profiles")]
    rules: Annotated[list[str], doc("files with its failure rules")]
    findings: Annotated[list[Finding], doc("HL313 for each profile that is not used until `--trust` names the commit")]


class TeamRemoved(Output):
    """The team that was removed."""

    name: Annotated[str, doc("name of the team, or the file")]
    url: Annotated[str, doc("the repository, folder or file")]


class NodeReport(Output):
    """The report of an attempt on a node."""

    time: Annotated[float, doc("when")]
    node: Annotated[str, doc("the node")]
    by: Annotated[str, doc("the user")]
    failure_class: Annotated[str, doc("[failure class](reference/failures.md)")]
    cause: Annotated[str | None, doc("the specific [cause](reference/failures.md)")]
    run: Annotated[str, doc("the run")]
    attempt: Annotated[int, doc("its attempt")]
    job_id: Annotated[str | None, doc("the job id of the attempt")]
    evidence: Annotated[list[Evidence], doc("lines that support it")]
    cleared: Annotated[bool, doc("always false")]


class BadNode(Output):
    """A node recorded as bad."""

    node: Annotated[str, doc("its name")]
    count: Annotated[int, doc("how many attempts reported it")]
    avoided: Annotated[bool, doc("whether new jobs exclude it; for some classes one report is not enough")]
    expires: Annotated[float, doc("when the record expires")]
    notes: Annotated[list[NodeReport], doc("the reports, the oldest first")]


class LeaseHolder(Output):
    """A run that uses a host. The user is the owner of the lease; the rest is what that user wrote."""

    user: Annotated[str, doc("the user")]
    run: Annotated[str, doc("the run")]
    job_id: Annotated[str, doc("its job id")]
    since: Annotated[float, doc("since when, by the clock of the host")]


class HostLeases(Output):
    """Who uses a host of a site without Slurm."""

    host: Annotated[str, doc("its name for ssh")]
    slots: Annotated[int, doc("its number of processes")]
    state: Annotated[Literal["used", "free", "unknown"], doc("`unknown` if it gave no answer")]
    fault: Annotated[str | None, doc("why it gave no answer")]
    holders: Annotated[list[LeaseHolder], doc("the runs that use it, the first one first")]


class RemoteCluster(Output):
    """A cluster that verbs reach with `--on`."""

    name: Annotated[str, doc("its name")]
    host: Annotated[str, doc("the login node, as ssh knows it")]
    version: Annotated[str, doc("of hpc-launch there: the release, and a digest of its files")]
    environment: Annotated[str, doc("the virtual environment there")]
    code: Annotated[str, doc("the folder of the copies of code there")]
    site: Annotated[str | None, doc("the site of a submission that names none")]
    added: Annotated[float, doc("when it was set up")]
    connected: Annotated[bool, doc("whether a connection is open now")]
