"""The part of an old script that describes its cluster: for the site profile, not for the job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.from_script import plain_commands
from hpc_launch.from_script.line_accounts import LineAccount
from hpc_launch.from_script.read_job import OldScript
from hpc_launch.sites.profile import SiteProfile

NotePath = tuple[str, ...]


class SitePart(Struct, frozen=True, kw_only=True):
    """What belongs to the site: a profile of its own, or, for a known site, what its profile may lack."""

    reference: str | None
    """`site:` of the job file."""
    data: dict[str, Any]
    notes: Mapping[NotePath, str] = {}
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
    processes = size.processes_per_node if size is not None else 1
    cpus = size.cpus_per_node if size is not None else None
    notes: dict[NotePath, str] = {}
    node: dict[str, Any] = {"cpus": cpus or max(processes, 1)}
    if cpus is None:
        notes["node_classes", "node", "cpus"] = "a guess: the script requests none"
    if gpus:
        node["gpus"] = gpus
        style = (request.gpu_request or "gpus-per-node").replace("gpus-per-task-type", "gpus-per-node-type")
        node["gpu_request"] = style
        if request.gpu_type:
            node["gpu_type"] = request.gpu_type
        notes["node_classes", "node", "gpus"] = "as many as the script requests; correct it if a node has more"
    queue: dict[str, Any] = {"node_class": "node", "memory": "omit"}
    for key in ("partition", "qos"):
        if getattr(request, key):
            queue[key] = getattr(request, key)
    if request.exclusive:
        queue["exclusive"] = True
    queue_name = request.partition or "default"
    data: dict[str, Any] = {
        "name": name,
        "title": f"drafted from {script.name}",
        "status": "draft",
        "scheduler": "slurm",
        "node_classes": {"node": node},
        "queues": {queue_name.partition(",")[0]: queue},
        **_extras(script, set()),
    }
    container = script.launch.container if script.launch is not None else None
    if container is not None:
        data["containers"] = {"runtime": container.runtime}
        if "://" in container.image and container.runtime != "pyxis":
            data["containers"]["pull_on_nodes"] = True
            notes["containers", "pull_on_nodes"] = "as the script does; `hpc-launch containers pull` does it once"
    return SitePart(
        reference=reference,
        data=data,
        notes=notes,
        gpus=gpus,
        cpus=node["cpus"],
        runtime=container.runtime if container is not None else None,
        variables=frozenset(name for name in script.job.env if plain_commands.NETWORK.match(name)),
    )


def known_site(script: OldScript, profile: SiteProfile, reference: str | None) -> SitePart:
    """The queue of a known site for the script's partition, and what its profile may lack."""
    request = script.request
    queue = note = None
    extra: dict[str, str | bool] = {}
    if request.partition or request.qos:
        for name, one in profile.queues.items():
            if one.partition == request.partition and request.qos in {None, one.qos}:
                queue, note = name, f"partition {request.partition}" if name != request.partition else ""
                break
        else:
            extra = {key: getattr(request, key) for key in ("partition", "qos") if getattr(request, key)}
    chosen = queue or profile.default_queue or next(iter(profile.queues), "")
    settings = {name for setting in profile.env for name in setting.set}
    if request.exclusive and chosen in profile.queues and not profile.queues[chosen].whole_nodes:
        extra["exclusive"] = True
    return SitePart(
        reference=reference,
        data=_extras(script, settings),
        profile=profile,
        queue=queue if queue != profile.default_queue else None,
        queue_note=note or "",
        runtime=profile.containers.runtime,
        sbatch=extra,
    )


def accounts_for(script: OldScript, profile: SiteProfile) -> tuple[LineAccount, ...]:
    """The accounts where the site is known: its profile is not changed, so lines for it are left to a person."""
    result = []
    for account in script.accounts:
        steps = {key for key in account.keys if key in {"site: prelude", "site: login_shell"}}
        if any(re.search(rf"\b{re.escape(name)}=", account.text) for name in script.job.prepend):
            steps.add("site: env")
        if profile.login_shell:
            steps.discard("site: login_shell")
        keys = tuple("env" if key == "site: env" else key for key in account.keys if key not in steps)
        changed = replace(account, keys=keys)
        if steps:
            why = f"for the profile of {profile.name}, if it lacks this: see the end of the job file"
            changed = replace(
                changed, outcome="not_understood", why="; ".join(part for part in (account.why, why) if part)
            )
        result.append(changed)
    return tuple(result)


def _extras(script: OldScript, known: set[str]) -> dict[str, Any]:
    """Steps and variables that every job of the site needs."""
    job = script.job
    steps: list[dict[str, Any]] = []
    if job.purge:
        steps.append({"modules": job.purge})
    if job.module_use:
        steps.append({"module_use": job.module_use})
    if job.module_unload:
        steps.append({"module_unload": job.module_unload})
    if job.ulimit:
        steps.append({"ulimit": job.ulimit})
    if job.mkdir:
        steps.append({"mkdir": [folder.replace("${shell.", "${env.") for folder in job.mkdir]})
    network = {
        name: value.text
        for name, (value, _) in job.env.items()
        if plain_commands.NETWORK.match(name) and name not in known
    }
    settings: list[dict[str, Any]] = []
    if network:
        settings.append({"set": network, "why": f"from {script.name}"})
    if job.prepend:
        settings.append({"prepend": job.prepend})
    result: dict[str, Any] = {}
    if any(account.keys == ("site: login_shell",) for account in script.accounts):
        result["login_shell"] = True
    if steps:
        result["prelude"] = steps
    if settings:
        result["env"] = settings
    if job.suffix:
        result["network"] = {"master": {"suffix": job.suffix}}
    return result
