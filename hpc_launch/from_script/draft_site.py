"""The part of an old script that describes its cluster: for the site profile, not for the job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.from_script.line_accounts import LineAccount
from hpc_launch.from_script.read_job import OldScript
from hpc_launch.from_script.settings import NETWORK
from hpc_launch.job.shell_text import visible
from hpc_launch.site_tools.learning.profile_yaml import yaml_text
from hpc_launch.sites.profile import SiteProfile


class SitePart(Struct, frozen=True, kw_only=True):
    """What belongs to the site: a profile of its own, or, for a known site, what its profile may lack."""

    reference: str | None
    """`site:` of the job file."""
    data: dict[str, Any]
    notes: Mapping[tuple[str, ...], str] = {}
    profile: SiteProfile | None = None
    """The known site."""
    queue: str | None = None
    queue_note: str = ""
    gpus: int = 0
    cpus: int | None = None
    runtime: str | None = None
    variables: frozenset[str] = frozenset()
    """Variables that the site profile sets, so that the job does not."""
    sbatch: Mapping[str, str | bool] = {}


def own_profile(script: OldScript, name: str, reference: str) -> SitePart:
    """A profile of a cluster that has exactly what the script requests."""
    request, size = script.request, script.size
    gpus = size.gpus_per_node if size is not None else request.gpus_per_node
    cpus = size.cpus_per_node if size is not None else None
    notes: dict[tuple[str, ...], str] = {}
    node: dict[str, Any] = {"cpus": cpus or max(size.processes_per_node if size is not None else 1, 1)}
    if cpus is None:
        notes["node_classes", "node", "cpus"] = "a guess: the script requests none"
    if gpus:
        node["gpus"] = gpus
        style = (request.gpu_request or "gpus-per-node").replace("gpus-per-task-type", "gpus-per-node-type")
        node["gpu_request"] = style
        if request.gpu_type:
            node["gpu_type"] = request.gpu_type
        notes["node_classes", "node", "gpus"] = "as many as the script requests; correct it if a node has more"
    queue: dict[str, Any] = {"node_class": "node", "memory": "omit", **_queue_options(script)}
    if request.get("exclusive") is not None:
        queue["exclusive"] = True
    data: dict[str, Any] = {
        "name": name,
        "title": f"drafted from {script.name}",
        "status": "draft",
        "scheduler": "slurm",
        "node_classes": {"node": node},
        "queues": {(request.get("partition") or "default").partition(",")[0]: queue},
        **_extras(script, set()),
    }
    container = script.launch.container if script.launch is not None else None
    if container is not None:
        data["containers"] = {"runtime": container["runtime"]}
        if "://" in container["image"] and container["runtime"] != "pyxis":
            data["containers"]["pull_on_nodes"] = True
            notes["containers", "pull_on_nodes"] = "as the script does; `hpc-launch containers pull` does it once"
    return SitePart(
        reference=reference,
        data=data,
        notes=notes,
        gpus=gpus,
        cpus=node["cpus"],
        runtime=container["runtime"] if container is not None else None,
        variables=frozenset(name for name in script.job.env if NETWORK.match(name)),
    )


def _queue_options(script: OldScript) -> dict[str, str]:
    return {key: text for key in ("partition", "qos") if (text := script.request.get(key))}


def known_site(script: OldScript, profile: SiteProfile, reference: str | None) -> SitePart:
    """The queue of a known site for the script's partition, and what its profile may lack."""
    asked = _queue_options(script)
    partition, qos = asked.get("partition"), asked.get("qos")
    fitting = (name for name, one in profile.queues.items() if one.partition == partition and qos in {None, one.qos})
    queue = next(fitting, None) if asked else None
    extra: dict[str, str | bool] = {} if queue else {**asked}
    chosen = queue or profile.default_queue or next(iter(profile.queues), "")
    exclusive = script.request.get("exclusive") is not None
    if exclusive and chosen in profile.queues and not profile.queues[chosen].whole_nodes:
        extra["exclusive"] = True
    return SitePart(
        reference=reference,
        data=_extras(script, {name for setting in profile.env for name in setting.set}),
        profile=profile,
        queue=queue if queue != profile.default_queue else None,
        queue_note=f"partition {partition}" if queue and queue != partition else "",
        runtime=profile.containers.runtime,
        sbatch=extra,
    )


def accounts_for(script: OldScript, profile: SiteProfile) -> tuple[LineAccount, ...]:
    """The accounts where the site is known: its profile is not changed, so lines for it are left to a person."""
    result = []
    for account in script.accounts:
        steps = {"site: prelude"} if profile.login_shell else {"site: prelude", "site: login_shell"}
        if any(re.search(rf"\b{re.escape(name)}=", account.text) for name in script.job.prepend):
            steps.add("site: env")
        keys = tuple("env" if key == "site: env" else key for key in account.keys if key not in steps)
        changed = replace(account, keys=keys)
        if steps & set(account.keys):
            why = f"for the profile of {profile.name}, if it lacks this: see the end of the job file"
            why = f"{account.why}; {why}" if account.why else why
            changed = replace(changed, outcome="not_understood", why=why)
        result.append(changed)
    return tuple(result)


def _extras(script: OldScript, known: set[str]) -> dict[str, Any]:
    """Steps and variables that every job of the site needs."""
    job = script.job
    network = {name: value.text for name, (value, _) in job.env.items() if NETWORK.match(name) and name not in known}
    settings: list[dict[str, Any]] = [{"set": network, "why": f"from {script.name}"}] if network else []
    settings += [{"prepend": job.prepend}] if job.prepend else []
    result = {
        "login_shell": any(account.keys == ("site: login_shell",) for account in script.accounts),
        "prelude": job.prelude,
        "env": settings,
        "network": {"master": {"suffix": job.suffix}} if job.suffix else None,
    }
    return {key: value for key, value in result.items() if value}


def site_text(script: OldScript, site: SitePart) -> str:
    """The site profile, for a script whose site is not known."""
    head = [
        f"Drafted by `hpc-launch init --from {visible(script.name)}` from that script alone.",
        "On the cluster, `hpc-launch sites learn` drafts a better one from what Slurm reports.",
    ]
    return yaml_text(site.data, site.notes, head)
