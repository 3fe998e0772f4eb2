"""Convert measurements of the probe jobs into facts of the profile. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpc_launch.site_tools.learning.draft_profile import ProfileDraft
from hpc_launch.site_tools.learning.probe_jobs import CollectiveMeasurement, ProbeResult, SmokeRecord

VERIFIED = "measured by jobs on the nodes"


def add_measurements(draft: ProfileDraft, probe_results: Sequence[ProbeResult], day: str, user: str) -> list[str]:
    """Add the measurements to the draft. Returns one line per error."""
    successful = [one for one in probe_results if one.fault is None]
    faults = [f"{one.queue}: {one.fault}" for one in probe_results if one.fault]
    records = [record for one in successful for record in one.records]
    for one in successful:
        faults += [f"{one.queue}: {fault}" for record in one.records for fault in record.faults]
    if not successful:
        return faults
    collective = [record.together for record in records if record.together is not None]
    _network(draft, records, collective)
    _fabric(draft, records)
    faults += _gpus(draft, successful)
    _folders(draft, collective)
    _internet(draft, records)
    _runtimes(draft, records)
    facts = {key: {"source": VERIFIED, "as_of": day, "grade": "A"} for key in _GROUPS if key in draft.data}
    draft.put(facts, "facts")
    names = ", ".join(one.queue for one in successful)
    draft.put("verified" if len(successful) == len(probe_results) else "draft", "status", note=f"jobs ran in {names}")
    draft.put(day, "verified_on")
    draft.put(f"{user}, with sites learn --smoke", "verified_by")
    draft.remarks += _remarks(successful)
    return faults


_GROUPS = ("network", "fabric", "internet")


def _network(draft: ProfileDraft, records: Sequence[SmokeRecord], collective: Sequence[CollectiveMeasurement]) -> None:
    """Interface between the nodes, and the form of the rendezvous address."""
    interfaces = {one.interface for one in collective if one.sum_is_right}
    if len(interfaces) == 1 and (name := interfaces.pop()) not in {None, "lo"}:
        most = max((one.bytes or 0 for one in collective), default=0)
        draft.put([name], "network", "interface", note=f"carried {most} bytes of a sum")
    unknown = sorted({name for one in collective for name, fabric in one.names.items() if not fabric})
    if unknown and len(records) > 1:
        draft.put({"resolve": "ip"}, "network", "master", note=f"nodes cannot resolve {', '.join(unknown[:3])}")
    elif any(one.by == "address" for one in collective):
        draft.put({"resolve": "ip"}, "network", "master", note="the first node was only reachable by address")


def _fabric(draft: ProfileDraft, records: Iterable[SmokeRecord]) -> None:
    kinds = {_kind(record) for record in records}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        draft.put(kind, "fabric", "kind", note=f"`extends: [{kind}]` adds the usual settings for this network")


def _kind(record: SmokeRecord) -> str | None:
    """Family of the fast network, by a node's adapters."""
    fabric = record.fabric
    if fabric is None:
        return None
    names = [adapter.name for adapter in fabric.adapters]
    links = {adapter.link for adapter in fabric.adapters}
    if fabric.slingshot:
        return "slingshot"
    if any(name.startswith("hfi1") for name in names):
        return "omni-path"
    if any(name.startswith(("efa", "rdmap")) for name in names):
        return "efa"
    if "InfiniBand" in links:
        return "infiniband"
    if "Ethernet" in links:
        return "roce"
    return "ethernet"


def _gpus(draft: ProfileDraft, successful: Iterable[ProbeResult]) -> list[str]:
    """GPU vendor and memory as seen by a process. Reports GPU counts that differ from the request."""
    faults = []
    for one in successful:
        queue = draft.data["queues"][one.queue]
        name = queue["node_class"]
        node = draft.data["node_classes"][name]
        for record in one.records:
            gpus = record.gpus
            allocated = gpus.variables.get("SLURM_GPUS_ON_NODE")
            if node.get("gpus") and allocated is not None and allocated != str(node["gpus"]):
                faults.append(f"{one.queue}: a job got {allocated} GPUs on a node that has {node['gpus']}")
            if gpus.models:
                model, _, mebibytes = gpus.models[0].rpartition(", ")
                draft.put(f"{len(gpus.models)} {model}", "node_classes", name, "about", note=VERIFIED)
                if mebibytes.isdecimal():
                    draft.put(f"{mebibytes}M", "node_classes", name, "gpu_memory", note=VERIFIED)
            vendor = "nvidia" if gpus.nvidia else "amd" if gpus.amd else None
            if vendor and node.get("gpus"):
                draft.put(vendor, "node_classes", name, "gpu_vendor", note=VERIFIED)
    return faults


def _folders(draft: ProfileDraft, collective: Sequence[CollectiveMeasurement]) -> None:
    """Mark folders that are not visible on every node, which cannot hold runs."""
    paths = draft.data.get("paths", {})
    for name in [*paths]:
        visible = [one.folders.get(name) for one in collective if one.folders is not None]
        if visible and all(visible):
            draft.notes["paths", name] = f"{draft.notes['paths', name]}; visible on all nodes of the jobs"
        else:
            paths[name] = {"path": paths[name], "note": "not visible or not writable on every node"}


def _internet(draft: ProfileDraft, records: Iterable[SmokeRecord]) -> None:
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


def _runtimes(draft: ProfileDraft, records: Iterable[SmokeRecord]) -> None:
    """Container runtimes on the nodes that the login node lacks."""
    found = {name for record in records for name in record.runtimes}
    runtimes = [name for name in ("apptainer", "singularity", "podman-hpc", "shifter") if name in found]
    if runtimes and draft.data["containers"]["runtime"] == "none":
        draft.put(runtimes[0], "containers", "runtime", note="found on the nodes")


def _remarks(successful: Iterable[ProbeResult]) -> list[str]:
    lines = []
    for one in successful:
        first = one.records[0]
        collective = first.together or CollectiveMeasurement()
        torch = collective.torch
        words = [f"{len(one.records)} nodes, Python {first.python}"]
        if collective.sum_is_right:
            words.append(f"2 MiB summed over {collective.interface} in {collective.seconds} s")
        words.append(f"PyTorch {torch.version}, {torch.backend}" if torch else "no PyTorch without modules")
        lines.append(f"Measured in {one.queue}: {', '.join(words)}.")
    return lines
