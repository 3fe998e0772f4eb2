"""The layers of a job that come from the site profile and from the user's overlay."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import Document, Source
from hpc_launch.job.job import JobSpec
from hpc_launch.job.merge import Layer
from hpc_launch.job.merge_operators import parse_operators
from hpc_launch.sites.layers import sublayer
from hpc_launch.sites.read_profile import Site


def as_layer(name: str, source: Source, findings: list[Finding]) -> Layer:
    """A file, or a part of one, as a layer of the job."""
    parsed, faults = parse_operators(source, {(): JobSpec})
    findings += faults
    origins = source.origins if isinstance(source, Layer) else {}
    return Layer(name, parsed.data, parsed.places, parsed.key_places, parsed.written, parsed.operators, origins)


def site_layers(site: Site, above: Sequence[Layer]) -> list[Layer]:
    """Job keys set by the profile: by its stack, its defaults, and the node class and queue that the job uses."""
    profile, name = site.profile, f"site {site.profile.name}"
    defaults = sublayer(name, site.merged, "defaults")

    def requested(*path: str) -> Any:
        for layer in (*reversed(above), defaults):
            current: Any = layer.data
            for key in path:
                current = current.get(key) if isinstance(current, Mapping) else None
            if current is not None:
                return current
        return None

    queue_name = requested("queue") or profile.default_queue or next(iter(profile.queues), "")
    queue = profile.queues.get(queue_name) if isinstance(queue_name, str) else None
    node = profile.node_classes.get(queue.node_class) if queue else None
    stack = requested("environment", "stack") or (queue and queue.stack) or (node and node.stack)
    chosen = profile.stacks.get(stack) if isinstance(stack, str) else None
    layers = []
    if isinstance(stack, str) and chosen is not None and (chosen.in_container or requested("container") is None):
        part = sublayer(name, site.merged, "stacks", stack)
        data = {key: value for key, value in part.data.items() if key in ("environment", "env")}
        layers.append(replace(part, data=data))
    layers.append(defaults)
    if queue is not None:
        layers.append(sublayer(name, site.merged, "node_classes", queue.node_class, "defaults"))
        layers.append(sublayer(name, site.merged, "queues", queue_name, "defaults"))
    account = next((var for var in profile.account.variables if os.environ.get(var)), None)
    if account is not None:
        layers.append(Layer("environment", {"account": os.environ[account]}, {("account",): Place(f"${account}")}))
    return layers


def user_layers(overlay: Document | None, site: str, findings: list[Finding]) -> list[Layer]:
    """`defaults:` for every site, and `sites: {NAME: …}` for one."""
    if overlay is None:
        return []
    parts = (sublayer("user", overlay, "defaults"), sublayer("user", overlay, "sites", site))
    return [as_layer("user", part, findings) for part in parts]
