"""Convert measurements of the probe jobs into facts of the profile. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_launch.site_tools.learning.draft_profile import ProfileDraft, put_gpus
from hpc_launch.site_tools.learning.host_facts import RUNTIMES, SmokeRecord, models
from hpc_launch.site_tools.learning.probe_jobs import ProbeResult

VERIFIED = "measured by jobs on the nodes"


_GROUPS = ("network", "fabric", "internet")


def add_measurements(draft: ProfileDraft, probe_results: Sequence[ProbeResult], day: str, user: str) -> list[str]:
    """Add the measurements to the draft. Returns one line per error."""
    successful = [one for one in probe_results if one.fault is None]
    faults = [f"{one.queue}: {one.fault}" for one in probe_results if one.fault]
    records = [record for one in successful for record in one.records]
    for one in successful:
        faults += [f"{one.queue}: {fault}" for record in one.records for fault in record.faults]
    if not successful:
        return faults
    _network(draft, records)
    faults += _gpus(draft, successful)
    _folders(draft, records)
    _internet(draft, records)
    found = {RUNTIMES.get(name, "") for record in records for name in record.runtimes}
    runtimes = [name for name in RUNTIMES.values() if name in found]
    if runtimes and draft.data["containers"]["runtime"] == "none":
        draft.put(runtimes[0], "containers", "runtime", note="found on the nodes")
    facts = {key: {"source": VERIFIED, "as_of": day, "grade": "A"} for key in _GROUPS if key in draft.data}
    draft.put(facts, "facts")
    names = ", ".join(one.queue for one in successful)
    draft.put("verified" if len(successful) == len(probe_results) else "draft", "status", note=f"jobs ran in {names}")
    draft.put(day, "verified_on")
    draft.put(f"{user}, with sites learn --smoke", "verified_by")
    draft.remarks += map(_remark, successful)
    return faults


def _network(draft: ProfileDraft, records: Sequence[SmokeRecord]) -> None:
    """Interface between the nodes, the form of the rendezvous address, and the family of the network."""
    interfaces = {record.together.interface for record in records if record.together.connected}
    if len(interfaces) == 1 and (name := interfaces.pop()) not in {None, "", "lo"}:
        draft.put([name], "network", "interface", note="connected the nodes")
    if any(record.together.by == "address" for record in records):
        draft.put({"resolve": "ip"}, "network", "master", note="the first node was only reachable by address")
    kinds = {record.fabric for record in records}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        draft.put(kind, "fabric", "kind", note=f"`extends: [{kind}]` adds the usual settings for this network")


def _gpus(draft: ProfileDraft, successful: Sequence[ProbeResult]) -> list[str]:
    """GPU vendor and memory as seen by a process. Reports GPU counts that differ from the request."""
    faults = []
    for one in successful:
        name = draft.data["queues"][one.queue]["node_class"]
        node = draft.data["node_classes"][name]
        for record in one.records:
            count = record.allocated_gpus
            if node.get("gpus") and count is not None and count != str(node["gpus"]):
                faults.append(f"{one.queue}: a job got {count} GPUs on a node that has {node['gpus']}")
            if record.gpus:
                draft.put(f"{len(record.gpus)} {models(record)}", "node_classes", name, "about", note=VERIFIED)
                put_gpus(draft, record.gpus, name, VERIFIED)
    return faults


def _folders(draft: ProfileDraft, records: Sequence[SmokeRecord]) -> None:
    """Mark folders that are not visible on every node, which cannot hold runs."""
    paths = draft.data.get("paths", {})
    for name in [*paths]:
        visible = [record.together.folders.get(name) for record in records if record.together.folders is not None]
        if visible and all(visible):
            draft.notes["paths", name] = f"{draft.notes['paths', name]}; visible on all nodes of the jobs"
        else:
            paths[name] = {"path": paths[name], "note": "not visible or not writable on every node"}


def _internet(draft: ProfileDraft, records: Sequence[SmokeRecord]) -> None:
    answers = [record.internet for record in records if record.internet is not None]
    access = {answer.compute for answer in answers}
    if len(access) == 1:
        draft.put(access.pop(), "internet", "compute", note="tested from the nodes")
        if proxy := answers[0].proxy:
            draft.put(proxy, "internet", "proxy")
        if answers[0].needs_password:
            draft.remarks.append(
                "The proxy in https_proxy has a password. Name its address under internet.proxy, without a password."
            )


def _remark(one: ProbeResult) -> str:
    first = one.records[0]
    words = [f"{len(one.records)} nodes, Python {first.python.version if first.python else 'unknown'}"]
    together, pythons = first.together, (first.launcher_python, first.python)
    torch = next((python.torch for python in pythons if python is not None and python.torch), None)
    words.append(f"PyTorch {torch}" if torch else "no PyTorch without modules")
    words += [f"all-reduce with {together.all_reduce:g} GB/s"] if together.all_reduce else []
    return f"Measured in {one.queue}: {', '.join(words)}."
