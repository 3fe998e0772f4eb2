"""Reading the layers of a job: the site's profile, the user's overlay, the job file and `--set`; then their merge."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.base.state import config_folder
from hpc_launch.sites import machine
from hpc_launch.sites.profile import Overlay, SiteProfile
from hpc_launch.sites.resolved import Resolved
from hpc_launch.sites.search import find_profile
from hpc_launch.spec.document import Document
from hpc_launch.spec.job import JobSpec
from hpc_launch.spec.merge import Layer, merge
from hpc_launch.spec.overrides import override_layer
from hpc_launch.spec.reader import check, read
from hpc_launch.spec.short_forms import long_form
from hpc_launch.spec.source import read_document
from hpc_launch.spec.text import UnknownName, interpolate, plain


class Loaded(Struct, frozen=True):
    """The resolved job, and the files as they were read, for the run folder."""

    resolved: Resolved
    job_text: str
    site_text: str


def load(job_file: Path, *, site: str | None = None, sets: Sequence[str] = (), job_folder: str | None = None) -> Loaded:
    """Read and merge all layers; relative paths start at `job_folder`, by default the job file's own.

    Raises Refused with every fault of every file.
    """
    findings: list[Finding] = []
    document = _document(job_file, findings)
    override = override_layer(sets, findings)
    if document is None:
        raise Refused(findings)
    site_document = _site_document(site, override, document, findings)
    profile = None
    if site_document is not None:
        profile, faults = read(site_document, SiteProfile)
        findings += faults
    overlay = _overlay(profile.name if profile else "", findings)
    layers = [*overlay, _layer("job", document), override]
    if profile is not None and site_document is not None:
        layers.insert(0, _part(f"site {profile.name}", site_document, "defaults"))
    for layer in layers:  # a fault is named where it stands, even if a later layer hides it
        findings += check(layer, JobSpec)
    if errors(findings) or profile is None or site_document is None:
        raise Refused(findings)
    merged = merge([_layer(layer.name, long_form(layer, JobSpec)) for layer in layers])
    job, faults = read(merged, JobSpec)
    findings += [fault for fault in faults if fault not in findings]
    if job is None:
        raise Refused(findings)
    if profile.scheduler.type == "local":
        profile = machine.counted(profile, job.most_nodes)
    names = _names(profile, site_document, job, findings)
    if errors(findings):
        raise Refused(findings)
    folder = job_folder or os.path.dirname(os.path.abspath(job_file))
    image = profile.containers.images.get(job.container.image) if job.container else None
    torch = machine.torch_version(job.environment, names, in_image=job.container is not None, of_image=image)
    resolved = Resolved(job, profile, merged, site_document.places, names, folder, torch)
    return Loaded(resolved, document.text, site_document.text)


def _document(path: Path, findings: list[Finding]) -> Document | None:
    document, faults = read_document(path)
    findings += faults
    return document


def _layer(name: str, document: Document) -> Layer:
    return Layer(name, document.data, document.places, document.key_places, document.written)


def _site_document(asked: str | None, override: Layer, job: Document, findings: list[Finding]) -> Document | None:
    """The profile that `--site`, `--set site=`, the job file or $HPC_LAUNCH_SITE names, in this order."""
    candidates = (
        (asked, Place("--site")),
        (override.data.get("site"), override.places.get(("site",))),
        (job.data.get("site"), job.places.get(("site",))),
        (os.environ.get("HPC_LAUNCH_SITE"), Place("$HPC_LAUNCH_SITE")),
    )
    name, place = next(((name, place) for name, place in candidates if name is not None), (None, None))
    if name is None:
        flag = "`--site NAME` (`--site local` for this machine)"
        hint = f"use {flag}, `site:` in the job file, or set HPC_LAUNCH_SITE"
        findings.append(Finding("HL300", "no site is named", job.places.get(()), hint))
        return None
    try:
        path = find_profile(str(name), place)
    except Refused as refused:
        findings += refused.findings
        return None
    return _document(path, findings)


def _part(name: str, document: Document, *path: str) -> Layer:
    """The mapping at `path` of a document as a layer of its own; an empty one where there is none."""
    data: Any = document.data
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping):
        return Layer(name, {}, {})

    def inside(table: Mapping[Any, Any]) -> dict[Any, Any]:
        return {key[len(path) :]: value for key, value in table.items() if key[: len(path)] == path}

    return Layer(name, data, inside(document.places), inside(document.key_places), inside(document.written))


def _overlay(site: str, findings: list[Finding]) -> list[Layer]:
    """`user.yaml` in the configuration folder: `defaults:` for every site, and `sites: {NAME: …}` for one."""
    path = config_folder() / "user.yaml"
    if not path.exists():
        return []
    document = _document(path, findings)
    if document is None:
        return []
    findings += check(document, Overlay)
    return [_part("user", document, "defaults"), _part("user", document, "sites", site)]


def _names(profile: SiteProfile, document: Document, job: JobSpec, findings: list[Finding]) -> dict[str, str]:
    """What `${…}` may name: the machine's names, the job's, and the site's paths."""
    names = machine.names(os.environ)
    names["job.name"] = job.name
    if job.account is not None:
        names["account"] = job.account
    for key, value in profile.paths.items():
        place = document.places.get(("paths", key))
        try:
            path = plain(interpolate(value, names))
        except UnknownName as unknown:
            if _is_used(f"paths.{key}", job):
                message, hint = f"`${{{unknown.name}}}` is not known here", "the job uses this path; set what it needs"
                findings.append(Finding("HL206", message, place, hint))
            continue
        if path is None:
            findings.append(Finding("HL207", "a site's path cannot depend on the run", place))
        else:
            names[f"paths.{key}"] = path
    return names


def _is_used(name: str, job: JobSpec) -> bool:
    return f"${{{name}}}" in repr(job)
