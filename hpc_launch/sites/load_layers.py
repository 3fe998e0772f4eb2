"""Load the layers of a job: the site profile, the user's overlay, the job file and `--set`, and merge them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused, Unreachable
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.sites import this_machine
from hpc_launch.sites.detect_profile import Detection
from hpc_launch.sites.load_profile import read_user_overlay
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
    """The resolved job, and the files as read, for the run folder."""

    resolved: Resolved
    job_text: str
    site_text: str
    detected: str | None = None
    """How the site was detected, unless it was specified."""


Detect = Callable[[Path], Detection]
"""Detects the site of this machine. The argument is the project's folder."""
NOT_SET_HERE = "-is-not-set-here"
"""End of the placeholder for a variable of the site that is not set on another machine."""
Elsewhere = Callable[[SiteProfile], bool]
"""Whether this machine is not the site."""


def load(
    job_file: Path,
    *,
    site: str | None = None,
    sets: Sequence[str] = (),
    job_folder: str | None = None,
    detect: Detect | None = None,
    elsewhere: Elsewhere | None = None,
) -> Loaded:
    """Read and merge all layers. Relative paths start at `job_folder`, by default the job file's folder.

    `detect` is called if no site is specified, `elsewhere` if one is: on another machine, folders that only the site
    knows get a placeholder. Raises Refused with all errors in all files, and Unreachable if the site cannot be detected
    because the controller does not answer.
    """
    findings: list[Finding] = []
    document = _read_document(job_file, findings)
    override = override_layer(sets, findings)
    if document is None:
        raise Refused(findings)
    overlay = read_user_overlay(findings)
    site_name = _named_site(site, override, document)
    detected = detect(_project_folder(job_file)) if site_name is None and detect is not None else None
    site_data = _site(site_name, detected, document, overlay, findings, _project_folder(job_file))
    profile = site_data.profile if site_data else None
    job_layer = _layer("job", document, findings)
    layers = [*_user_layers(overlay, profile.name if profile else "", findings), job_layer, override]
    if site_data is not None:
        layers = [*_site_layers(site_data, layers), *layers]
    for layer in layers:  # report errors where they occur, even if a later layer overrides the value
        findings += check(layer, JobSpec)
    if errors(findings) or profile is None or site_data is None:
        raise Refused(findings)
    merged = merge([_expand(layer) for layer in layers])
    job, faults = read(merged, JobSpec)
    findings += [fault for fault in faults if fault not in findings]
    if job is None:
        raise Refused(findings)
    if profile.scheduler.type == "local":
        profile = this_machine.with_local_hardware(profile, job.max_nodes)
    profile = _apply_queue(profile, job)
    late: dict[str, Text] = {}
    away = elsewhere is not None and site_name is not None and elsewhere(profile)
    names = _names(site_data, job, late, findings, away=away)
    if errors(findings):
        raise Refused(findings)
    folder = job_folder or os.path.dirname(os.path.abspath(job_file))
    image = profile.containers.images.get(job.container.image) if job.container else None
    torch = this_machine.torch_version(job.environment, names, in_image=job.container is not None, image=image)
    logins = this_machine.logins(os.environ) if job.trackers else None
    resolved = Resolved(
        job,
        profile,
        merged,
        site_data.merged,
        names,
        folder,
        torch,
        logins,
        site_data.provenance,
        late,
        this_machine.bad_nodes(profile.bad_nodes, names),
        this_machine.submitter(),
        away,
    )
    reason = detected.chosen.reason if detected and detected.chosen else None
    return Loaded(resolved, document.text, site_data.text, reason)


def _read_document(path: Path, findings: list[Finding]) -> Document | None:
    document, faults = read_document(path)
    findings += faults
    return document


def _layer(name: str, source: Source, findings: list[Finding]) -> Layer:
    """A file, or a part of one, as a layer of the job."""
    parsed, faults = parse_operators(source, {(): JobSpec})
    findings += faults
    origins = source.origins if isinstance(source, Layer) else {}
    return Layer(name, parsed.data, parsed.places, parsed.key_places, parsed.written, parsed.operators, origins)


def _expand(layer: Layer) -> Layer:
    expanded = long_form(layer, JobSpec)
    return Layer(
        layer.name,
        expanded.data,
        expanded.places,
        expanded.key_places,
        expanded.written,
        layer.operators,
        layer.origins,
    )


def _project_folder(job_file: Path) -> Path:
    """Folder in which the project's own profiles are looked up."""
    return Path(os.path.dirname(os.path.abspath(job_file)))


def _named_site(requested: str | None, override: Layer, job: Document) -> tuple[str, Place | None] | None:
    """The site specified by `--site`, `--set site=`, the job file or $HPC_LAUNCH_SITE, in this order."""
    candidates = (
        (requested, Place("--site")),
        (override.data.get("site"), override.places.get(("site",))),
        (job.data.get("site"), job.places.get(("site",))),
        (os.environ.get("HPC_LAUNCH_SITE"), Place("$HPC_LAUNCH_SITE")),
    )
    return next(((str(name), place) for name, place in candidates if name is not None), None)


def _site(  # noqa: PLR0917 - sources of the name and search folders
    site_name: tuple[str, Place | None] | None,
    detected: Detection | None,
    job: Document,
    overlay: Document | None,
    findings: list[Finding],
    project: Path,
) -> Site | None:
    """The specified profile, or the detected one."""
    if site_name is None and detected is not None and detected.chosen is None and detected.unreachable is not None:
        raise Unreachable(detected.message, detected.hint)
    if site_name is None and (detected is None or detected.chosen is None):
        flag = "`--site NAME` (`--site local` for this machine)"
        hint = detected.hint if detected else f"use {flag}, set `site:` in the job file, or set HPC_LAUNCH_SITE"
        message = detected.message if detected else "no site specified"
        findings.append(Finding(FindingCode.SITE_NOT_DETECTED, message, job.places.get(()), hint))
        return None
    folders = [folder for _, folder in search_path(project)]
    if site_name is None:
        path = detected.chosen.path if detected and detected.chosen else project
        return read_site(path, overlay, findings, folders=folders)
    name, place = site_name
    try:
        path = find_profile(name, place, project)
    except Refused as refused:
        findings += refused.findings
        return None
    return read_site(path, overlay, findings, asked_at=place, own=is_file_name(name), folders=folders)


def _sublayer(name: str, source: Source, *path: str) -> Layer:
    """The mapping at `path` as a separate layer, empty if there is none."""
    data: Any = source.data
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping):
        return Layer(name, {}, {})

    def below_path(table: Mapping[Any, Any]) -> dict[Any, Any]:
        return {key[len(path) :]: value for key, value in table.items() if key[: len(path)] == path}

    if not isinstance(source, Merged):
        return Layer(name, data, below_path(source.places), below_path(source.key_places), below_path(source.written))
    places, key_places, written = below_path(source.places), below_path(source.key_places), below_path(source.written)
    return Layer(name, data, places, key_places, written, below_path(source.operators), below_path(source.origins))


def _site_layers(site: Site, above: Sequence[Layer]) -> list[Layer]:
    """Job keys set by the profile: by its stack, its defaults, and the node class and queue that the job uses."""
    profile, name = site.profile, f"site {site.profile.name}"
    defaults = _sublayer(name, site.merged, "defaults")

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
        part = _sublayer(name, site.merged, "stacks", stack)
        data = {key: value for key, value in part.data.items() if key in ("environment", "env")}
        layers.append(Layer(name, data, part.places, part.key_places, part.written, part.operators, part.origins))
    layers.append(defaults)
    if queue is not None:
        layers.append(_sublayer(name, site.merged, "node_classes", queue.node_class, "defaults"))
        layers.append(_sublayer(name, site.merged, "queues", queue_name, "defaults"))
    account = next((var for var in profile.account.variables if os.environ.get(var)), None)
    if account is not None:
        layers.append(Layer("environment", {"account": os.environ[account]}, {("account",): Place(f"${account}")}))
    return layers


def _apply_queue(profile: SiteProfile, job: JobSpec) -> SiteProfile:
    """The profile with the queue's `internet` instead of the site's."""
    queue = profile.queues.get(job.queue or profile.default_queue or next(iter(profile.queues), ""))
    return replace(profile, internet=queue.internet) if queue and queue.internet else profile


def _user_layers(overlay: Document | None, site: str, findings: list[Finding]) -> list[Layer]:
    """`defaults:` for every site, and `sites: {NAME: …}` for one."""
    if overlay is None:
        return []
    parts = (_sublayer("user", overlay, "defaults"), _sublayer("user", overlay, "sites", site))
    return [_layer("user", part, findings) for part in parts]


def _names(site: Site, job: JobSpec, late: dict[str, Text], findings: list[Finding], *, away: bool) -> dict[str, str]:
    """Names that `${…}` can refer to: the machine's, the job's and the site's paths. Names that only the job knows are
    added to `late`. `away`: this machine is not the site, so that a missing variable gets a placeholder."""
    names = this_machine.names(os.environ)
    names["job.name"] = job.name
    if job.account is not None:
        names["account"] = _without_account_suffix(job.account, site.profile)
    for key, folder in site.profile.paths.items():
        place = site.merged.places.get(("paths", key, "path"))
        try:
            text = interpolate(folder.path, _Placeholders(names) if away else names, late=late)
        except UnknownName as unknown:
            if _is_used(f"paths.{key}", job):
                message, hint = f"unknown name `${{{unknown.name}}}`", "the job uses this path; set the variable"
                findings.append(Finding(FindingCode.UNKNOWN_NAME, message, place, hint))
            continue
        path = plain(text)
        if path is not None:
            names[f"paths.{key}"] = path
        else:
            late[f"paths.{key}"] = text
    return names


class _Placeholders(dict[str, str]):
    """Names, with a placeholder for each variable that is not set on this machine."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or str(name).startswith("env.")

    def __missing__(self, name: str) -> str:
        if name.startswith("env."):
            return f"/{name[4:]}{NOT_SET_HERE}"
        raise KeyError(name)


def _without_account_suffix(account: str, profile: SiteProfile) -> str:
    """Name of the project: folders have it without the account suffix for the hardware."""
    suffixes = [queue.account_suffix for queue in profile.queues.values()]
    suffixes += [node.account_suffix for node in profile.node_classes.values()]
    site_data = max((suffix for suffix in suffixes if suffix and account.endswith(suffix)), key=len, default="")
    return account.removesuffix(site_data) or account


def _is_used(name: str, job: JobSpec) -> bool:
    return f"${{{name}}}" in repr(job)
