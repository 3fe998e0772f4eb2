"""What the jobs on the nodes measured, as facts of the profile. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpc_launch.site_tools.learning.draft_profile import ProfileDraft
from hpc_launch.site_tools.learning.probe_jobs import Smoked

VERIFIED = "measured by jobs on the nodes"

Record = Mapping[str, Any]


def take(draft: ProfileDraft, smoked: Sequence[Smoked], day: str, by: str) -> list[str]:
    """Put what was measured into the draft, and hand back what went wrong, a line each."""
    good = [one for one in smoked if one.fault is None]
    faults = [f"{one.queue}: {one.fault}" for one in smoked if one.fault]
    records = [record for one in good for record in one.records]
    for one in good:
        faults += [f"{one.queue}: {fault}" for record in one.records for fault in record.get("faults") or ()]
    if not good:
        return faults
    together = [record["together"] for record in records if isinstance(record.get("together"), dict)]
    _network(draft, records, together)
    _fabric(draft, records)
    faults += _gpus(draft, good)
    _folders(draft, together)
    _internet(draft, records)
    _runtimes(draft, records)
    facts = {key: {"source": VERIFIED, "as_of": day, "grade": "A"} for key in _GROUPS if key in draft.data}
    draft.put(facts, "facts")
    names = ", ".join(one.queue for one in good)
    draft.put("verified" if len(good) == len(smoked) else "draft", "status", note=f"jobs ran in {names}")
    draft.put(day, "verified_on")
    draft.put(f"{by}, with sites learn --smoke", "verified_by")
    draft.remarks += _sentences(good)
    return faults


_GROUPS = ("network", "fabric", "internet")


def _network(draft: ProfileDraft, records: Sequence[Record], together: Sequence[Record]) -> None:
    """The interface between the nodes, and what is handed on as the first node's address."""
    used = {one.get("interface") for one in together if one.get("sum_is_right")}
    if len(used) == 1 and (name := used.pop()) not in {None, "lo"}:
        most = max((one.get("bytes") or 0 for one in together), default=0)
        draft.put([name], "network", "interface", note=f"{most} bytes of a sum went through it")
    unknown = sorted({name for one in together for name, found in (one.get("names") or {}).items() if not found})
    if unknown and len(records) > 1:
        draft.put({"resolve": "ip"}, "network", "master", note=f"nodes do not know {', '.join(unknown[:3])} by name")
    elif any(one.get("by") == "address" for one in together):
        draft.put({"resolve": "ip"}, "network", "master", note="the first node was reached by its address alone")


def _fabric(draft: ProfileDraft, records: Iterable[Record]) -> None:
    kinds = {_kind(record) for record in records}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        draft.put(kind, "fabric", "kind", note=f"`extends: [{kind}]` brings what such a network usually wants")


def _kind(record: Record) -> str | None:
    """The family of the fast network, by the adapters of a node."""
    found = record.get("fabric") or {}
    names = [str(adapter.get("name")) for adapter in found.get("adapters") or ()]
    links = {str(adapter.get("link")) for adapter in found.get("adapters") or ()}
    if found.get("slingshot"):
        return "slingshot"
    if any(name.startswith("hfi1") for name in names):
        return "omni-path"
    if any(name.startswith(("efa", "rdmap")) for name in names):
        return "efa"
    if "InfiniBand" in links:
        return "infiniband"
    if "Ethernet" in links:
        return "roce"
    return "ethernet" if "fabric" in record and record["fabric"] is not None else None


def _gpus(draft: ProfileDraft, good: Iterable[Smoked]) -> list[str]:
    """Whose GPUs they are and how large, by what a process saw; a doubt where Slurm gave others than it has."""
    faults = []
    for one in good:
        queue = draft.data["queues"][one.queue]
        name = queue["node_class"]
        node = draft.data["node_classes"][name]
        for record in one.records:
            seen = record.get("gpus") or {}
            given = (seen.get("variables") or {}).get("SLURM_GPUS_ON_NODE")
            if node.get("gpus") and given is not None and given != str(node["gpus"]):
                faults.append(f"{one.queue}: a job got {given} GPUs of a node that has {node['gpus']}")
            models = [str(model) for model in seen.get("models") or ()]
            if models:
                model, _, mebibytes = models[0].rpartition(", ")
                draft.put(f"{len(models)} {model}", "node_classes", name, "about", note=VERIFIED)
                if mebibytes.isdecimal():
                    draft.put(f"{mebibytes}M", "node_classes", name, "gpu_memory", note=VERIFIED)
            vendor = "nvidia" if seen.get("nvidia") else "amd" if seen.get("amd") else None
            if vendor and node.get("gpus"):
                draft.put(vendor, "node_classes", name, "gpu_vendor", note=VERIFIED)
    return faults


def _folders(draft: ProfileDraft, together: Sequence[Record]) -> None:
    """A folder that not every node sees is no place for a run."""
    paths = draft.data.get("paths", {})
    for name in [*paths]:
        seen = [one["folders"].get(name) for one in together if one.get("folders") is not None]
        if seen and all(seen):
            draft.notes["paths", name] = f"{draft.notes['paths', name]}; all nodes of the jobs saw it"
        else:
            paths[name] = {"path": paths[name], "note": "not every node sees it, or nobody may write there"}


def _internet(draft: ProfileDraft, records: Iterable[Record]) -> None:
    answers = [record["internet"] for record in records if record.get("internet")]
    ways = {answer.get("compute") for answer in answers}
    if len(ways) == 1:
        draft.put(ways.pop(), "internet", "compute", note="tried from the nodes")
        if proxy := answers[0].get("proxy"):
            draft.put(proxy, "internet", "proxy")


def _runtimes(draft: ProfileDraft, records: Iterable[Record]) -> None:
    """What the nodes have that the login node has not: images run there."""
    found = [name for record in records for name in record.get("runtimes") or ()]
    known = [name for name in ("apptainer", "singularity", "podman-hpc", "shifter") if name in found]
    if known and draft.data["containers"]["runtime"] == "none":
        draft.put(known[0], "containers", "runtime", note="found on the nodes")


def _sentences(good: Iterable[Smoked]) -> list[str]:
    lines = []
    for one in good:
        first = one.records[0]
        together = first.get("together") or {}
        torch = together.get("torch")
        words = [f"{len(one.records)} nodes, Python {first.get('python')}"]
        if together.get("sum_is_right"):
            words.append(f"2 MiB summed over {together.get('interface')} in {together.get('seconds')} s")
        words.append(f"PyTorch {torch['version']}, {torch['backend']}" if torch else "no PyTorch without modules")
        lines.append(f"Measured in {one.queue}: {', '.join(words)}.")
    return lines
