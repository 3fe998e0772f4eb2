"""Reading the layers of a job: the site's profile, the user's overlay, the job file and `--set`; then their merge."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.sites import this_machine
from hpc_launch.sites.detect_profile import Detection
from hpc_launch.sites.load_profile import users_own
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.read_profile import Site, read_site
from hpc_launch.sites.resolved import Resolved
from hpc_launch.sites.search_path import find_profile, is_file_name, search_path
from hpc_launch.spec.document import Document, Source
from hpc_launch.spec.job import JobSpec
from hpc_launch.spec.merge import Layer, Merged, merge
from hpc_launch.spec.merge_operators import parse_operators
from hpc_launch.spec.reader import check, read
from hpc_launch.spec.set_options import override_layer
from hpc_launch.spec.shell_text import Text, UnknownName, interpolate, plain
from hpc_launch.spec.short_forms import long_form
from hpc_launch.spec.yaml_source import read_document


class Loaded(Struct, frozen=True):
    """The resolved job, and the files as they were read, for the run folder."""

    resolved: Resolved
    job_text: str
    site_text: str
    detected: str | None = None
    """By what the site was known, where nobody named it."""


Detect = Callable[[Path], Detection]
"""Finds out which site this machine is of; the folder is the project's."""


def load(
    job_file: Path,
    *,
    site: str | None = None,
    sets: Sequence[str] = (),
    job_folder: str | None = None,
    detect: Detect | None = None,
) -> Loaded:
    """Read and merge all layers; relative paths start at `job_folder`, by default the job file's own.

    `detect` is asked where nobody names the site. Raises Refused with every fault of every file.
    """
    findings: list[Finding] = []
    document = _document(job_file, findings)
    override = override_layer(sets, findings)
    if document is None:
        raise Refused(findings)
    overlay = users_own(findings)
    named = _named(site, override, document)
    detected = detect(_project(job_file)) if named is None and detect is not None else None
    found = _site(named, detected, document, overlay, findings, _project(job_file))
    profile = found.profile if found else None
    own = _layer("job", document, findings)
    layers = [*_of_user(overlay, profile.name if profile else "", findings), own, override]
    if found is not None:
        layers = [*_of_site(found, layers), *layers]
    for layer in layers:  # a fault is named where it stands, even if a later layer hides it
        findings += check(layer, JobSpec)
    if errors(findings) or profile is None or found is None:
        raise Refused(findings)
    merged = merge([_long(layer) for layer in layers])
    job, faults = read(merged, JobSpec)
    findings += [fault for fault in faults if fault not in findings]
    if job is None:
        raise Refused(findings)
    if profile.scheduler.type == "local":
        profile = this_machine.counted(profile, job.max_nodes)
    profile = _in_queue(profile, job)
    late: dict[str, Text] = {}
    names = _names(found, job, late, findings)
    if errors(findings):
        raise Refused(findings)
    folder = job_folder or os.path.dirname(os.path.abspath(job_file))
    image = profile.containers.images.get(job.container.image) if job.container else None
    torch = this_machine.torch_version(job.environment, names, in_image=job.container is not None, of_image=image)
    logins = this_machine.logins(os.environ) if job.trackers else None
    resolved = Resolved(
        job,
        profile,
        merged,
        found.merged,
        names,
        folder,
        torch,
        logins,
        found.provenance,
        late,
        this_machine.bad_nodes(profile.bad_nodes, names),
        this_machine.submitter(),
    )
    because = detected.chosen.because if detected and detected.chosen else None
    return Loaded(resolved, document.text, found.text, because)


def _document(path: Path, findings: list[Finding]) -> Document | None:
    document, faults = read_document(path)
    findings += faults
    return document


def _layer(name: str, source: Source, findings: list[Finding]) -> Layer:
    """A file, or a part of one, as a layer of the job."""
    parsed, faults = parse_operators(source, {(): JobSpec})
    findings += faults
    origins = source.origins if isinstance(source, Layer) else {}
    return Layer(name, parsed.data, parsed.places, parsed.key_places, parsed.written, parsed.operators, origins)


def _long(layer: Layer) -> Layer:
    long = long_form(layer, JobSpec)
    return Layer(layer.name, long.data, long.places, long.key_places, long.written, layer.operators, layer.origins)


def _project(job_file: Path) -> Path:
    """The folder in which the project's own profiles are looked for."""
    return Path(os.path.dirname(os.path.abspath(job_file)))


def _named(asked: str | None, override: Layer, job: Document) -> tuple[str, Place | None] | None:
    """The site that `--site`, `--set site=`, the job file or $HPC_LAUNCH_SITE names, in this order."""
    candidates = (
        (asked, Place("--site")),
        (override.data.get("site"), override.places.get(("site",))),
        (job.data.get("site"), job.places.get(("site",))),
        (os.environ.get("HPC_LAUNCH_SITE"), Place("$HPC_LAUNCH_SITE")),
    )
    return next(((str(name), place) for name, place in candidates if name is not None), None)


def _site(  # noqa: PLR0917 - who may name it, and where it is looked for
    named: tuple[str, Place | None] | None,
    detected: Detection | None,
    job: Document,
    overlay: Document | None,
    findings: list[Finding],
    project: Path,
) -> Site | None:
    """The profile that is named, else the one that was detected."""
    if named is None and (detected is None or detected.chosen is None):
        flag = "`--site NAME` (`--site local` for this machine)"
        hint = detected.hint if detected else f"use {flag}, `site:` in the job file, or set HPC_LAUNCH_SITE"
        message = detected.message if detected else "no site is named"
        findings.append(Finding(FindingCode.SITE_NOT_DETECTED, message, job.places.get(()), hint))
        return None
    folders = [folder for _, folder in search_path(project)]
    if named is None:
        path = detected.chosen.path if detected and detected.chosen else project
        return read_site(path, overlay, findings, folders=folders)
    name, place = named
    try:
        path = find_profile(name, place, project)
    except Refused as refused:
        findings += refused.findings
        return None
    return read_site(path, overlay, findings, asked_at=place, own=is_file_name(name), folders=folders)


def _part(name: str, source: Source, *path: str) -> Layer:
    """The mapping at `path` of a file as a layer of its own; an empty one where there is none."""
    data: Any = source.data
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping):
        return Layer(name, {}, {})

    def inside(table: Mapping[Any, Any]) -> dict[Any, Any]:
        return {key[len(path) :]: value for key, value in table.items() if key[: len(path)] == path}

    if not isinstance(source, Merged):
        return Layer(name, data, inside(source.places), inside(source.key_places), inside(source.written))
    places, key_places, written = inside(source.places), inside(source.key_places), inside(source.written)
    return Layer(name, data, places, key_places, written, inside(source.operators), inside(source.origins))


def _of_site(site: Site, above: Sequence[Layer]) -> list[Layer]:
    """Keys of a job that the profile has: of its stack, itself, and the node class and queue that the job will use."""
    profile, name = site.profile, f"site {site.profile.name}"
    defaults = _part(name, site.merged, "defaults")

    def asked(*path: str) -> Any:
        for layer in (*reversed(above), defaults):
            held: Any = layer.data
            for key in path:
                held = held.get(key) if isinstance(held, Mapping) else None
            if held is not None:
                return held
        return None

    queue_name = asked("queue") or profile.default_queue or next(iter(profile.queues), "")
    queue = profile.queues.get(queue_name) if isinstance(queue_name, str) else None
    node = profile.node_classes.get(queue.node_class) if queue else None
    stack = asked("environment", "stack") or (queue and queue.stack) or (node and node.stack)
    chosen = profile.stacks.get(stack) if isinstance(stack, str) else None
    layers = []
    if isinstance(stack, str) and chosen is not None and (chosen.in_container or asked("container") is None):
        part = _part(name, site.merged, "stacks", stack)
        data = {key: value for key, value in part.data.items() if key in ("environment", "env")}
        layers.append(Layer(name, data, part.places, part.key_places, part.written, part.operators, part.origins))
    layers.append(defaults)
    if queue is not None:
        layers.append(_part(name, site.merged, "node_classes", queue.node_class, "defaults"))
        layers.append(_part(name, site.merged, "queues", queue_name, "defaults"))
    account = next((var for var in profile.account.variables if os.environ.get(var)), None)
    if account is not None:
        layers.append(Layer("environment", {"account": os.environ[account]}, {("account",): Place(f"${account}")}))
    return layers


def _in_queue(profile: SiteProfile, job: JobSpec) -> SiteProfile:
    """The profile with what the job's queue says of the internet in place of what the site says."""
    queue = profile.queues.get(job.queue or profile.default_queue or next(iter(profile.queues), ""))
    return replace(profile, internet=queue.internet) if queue and queue.internet else profile


def _of_user(overlay: Document | None, site: str, findings: list[Finding]) -> list[Layer]:
    """`defaults:` for every site, and `sites: {NAME: …}` for one."""
    if overlay is None:
        return []
    parts = (_part("user", overlay, "defaults"), _part("user", overlay, "sites", site))
    return [_layer("user", part, findings) for part in parts]


def _names(site: Site, job: JobSpec, late: dict[str, Text], findings: list[Finding]) -> dict[str, str]:
    """What `${…}` may name: the machine's names, the job's, the site's paths; `late` gets those only the job knows."""
    names = this_machine.names(os.environ)
    names["job.name"] = job.name
    if job.account is not None:
        names["account"] = _without_suffix(job.account, site.profile)
    for key, folder in site.profile.paths.items():
        place = site.merged.places.get(("paths", key, "path"))
        try:
            text = interpolate(folder.path, names, late=late)
        except UnknownName as unknown:
            if _is_used(f"paths.{key}", job):
                message, hint = f"`${{{unknown.name}}}` is not known here", "the job uses this path; set what it needs"
                findings.append(Finding(FindingCode.UNKNOWN_NAME, message, place, hint))
            continue
        path = plain(text)
        if path is not None:
            names[f"paths.{key}"] = path
        else:
            late[f"paths.{key}"] = text
    return names


def _without_suffix(account: str, profile: SiteProfile) -> str:
    """The project's name: folders have it without the ending that stands for the hardware."""
    suffixes = [queue.account_suffix for queue in profile.queues.values()]
    suffixes += [node.account_suffix for node in profile.node_classes.values()]
    found = max((suffix for suffix in suffixes if suffix and account.endswith(suffix)), key=len, default="")
    return account.removesuffix(found) or account


def _is_used(name: str, job: JobSpec) -> bool:
    return f"${{{name}}}" in repr(job)
