"""Load the layers of a job: the site profile, the user's overlay, the job file and `--set`, and merge them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.document import Document, Source
from hpc_launch.job.job import JobSpec
from hpc_launch.job.job_file import JobSource, folder_of, override_layer, read_job
from hpc_launch.job.merge import Layer, merge, parse_operators, sublayer
from hpc_launch.job.reader import check, read
from hpc_launch.job.shell_text import Text
from hpc_launch.sites import this_machine
from hpc_launch.sites.detect_profile import Detection
from hpc_launch.sites.network import JobHost
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.read_profile import Site, read_named_site, read_site, read_user_overlay
from hpc_launch.sites.resolved import Resolved
from hpc_launch.sites.search_path import is_file_name, search_folders
from hpc_launch.sites.this_machine import interpolation_names


def as_layer(name: str, source: Source, findings: list[Finding]) -> Layer:
    """A file, or a part of one, as a layer of the job."""
    layer, faults = parse_operators(name, source, {(): JobSpec})
    findings += faults
    return replace(layer, origins=source.origins) if isinstance(source, Layer) else layer


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

    queue_name: Any = profile.queue_of(requested("queue"))  # not checked yet
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
        layers.append(Layer({"account": os.environ[account]}, {("account",): Place(f"${account}")}, name="environment"))
    return layers


class Loaded(Struct, frozen=True):
    """The resolved job, and the files as read, for the run folder."""

    resolved: Resolved
    job_text: str
    site_text: str
    detected: str | None = None
    """How the site was detected, unless it was specified."""


class JobSources(Struct, frozen=True):
    """The files of a job as read, and the site. Several jobs that differ in `--set` options can share them."""

    job_file: JobSource
    document: Document
    layers: tuple[Layer, ...]
    """Those of the user's overlay and of the job file."""
    site_name: tuple[str, Place | None] | None
    detected: Detection | None
    site: Site | None
    findings: tuple[Finding, ...]


Detect = Callable[[Path], Detection]
"""Detects the site of this machine. The argument is the project's folder."""
Elsewhere = Callable[[SiteProfile], bool]
"""Whether this machine is not the site."""


def load(
    job_file: JobSource,
    *,
    site: str | None = None,
    sets: Sequence[str] = (),
    job_folder: str | None = None,
) -> Loaded:
    """Read and merge all layers of a job that names its site. Relative paths start at `job_folder`, by default the job
    file's folder. Raises Refused with all errors in all files."""
    return resolve(read_sources(job_file, site=site, sets=sets), sets=sets, job_folder=job_folder)


def read_sources(
    job_file: JobSource,
    *,
    site: str | None = None,
    sets: Sequence[str] = (),
    detect: Detect | None = None,
    document: Document | None = None,
) -> JobSources:
    """Read the job file, the user's overlay and the profile of the site.

    `detect` is called if no site is specified. `document`: the job file, where it was read already. Raises Refused, and
    Unreachable if the site cannot be detected because the controller does not answer.
    """
    findings: list[Finding] = []
    if document is None:
        document, faults = read_job(job_file)
        findings += faults
    if document is None:
        override_layer(sets, findings)
        raise Refused(findings)
    overlay, project = read_user_overlay(findings), Path(folder_of(job_file))
    site_name = _named_site(site, override_layer(sets, []), document, project)
    detected = detect(project) if site_name is None and detect is not None else None
    site_data = _site(site_name, detected, document, overlay, findings, project)
    layers = [as_layer("job", document, findings)]
    if overlay is not None:
        of_site = sublayer("user", overlay, "sites", site_data.profile.name if site_data else "")
        layers[:0] = (as_layer("user", one, findings) for one in (sublayer("user", overlay, "defaults"), of_site))
    for layer in layers:  # report errors where they occur, even if a later layer overrides the value
        findings += check(layer, JobSpec)
    return JobSources(job_file, document, tuple(layers), site_name, detected, site_data, tuple(findings))


def resolve(
    sources: JobSources,
    *,
    sets: Sequence[str] = (),
    job_folder: str | None = None,
    elsewhere: Elsewhere | None = None,
    avoid: Sequence[str] = (),
) -> Loaded:
    """Merge the layers of a job. The `--set` options name the site that was read.

    Relative paths start at `job_folder`, by default the job file's folder. `elsewhere` is called for a specified site:
    on another machine, folders that only the site knows get a placeholder. `avoid`: hosts that the run excludes, where
    no scheduler chooses them. Raises Refused with all errors in all files.
    """
    findings = list(sources.findings)
    override = override_layer(sets, findings)
    job_file, document = sources.job_file, sources.document
    site_name, detected, site_data = sources.site_name, sources.detected, sources.site
    profile = site_data.profile if site_data else None
    of_site = site_layers(site_data, [*sources.layers, override]) if site_data is not None else []
    for layer in (*of_site, override):
        findings += check(layer, JobSpec)
    if errors(findings) or profile is None or site_data is None:
        raise Refused(findings)
    merged = merge([*of_site, *sources.layers, override])
    job, faults = read(merged, JobSpec)
    findings += [fault for fault in faults if fault not in findings]
    if job is None:
        raise Refused(findings)
    if profile.scheduler.kind == "local":
        profile = this_machine.with_local_hardware(profile, job.max_nodes)
    queue = profile.queues.get(profile.queue_of(job.queue))
    if queue is not None and queue.internet is not None:
        profile = replace(profile, internet=queue.internet)
    late: dict[str, Text] = {}
    away = elsewhere is not None and site_name is not None and elsewhere(profile)
    names = interpolation_names(site_data, job, late, findings, away=away)
    if errors(findings):
        raise Refused(findings)
    folder = job_folder or folder_of(job_file)
    hosts: tuple[JobHost, ...] = ()
    site_hosts = None
    if profile.scheduler.type == "ssh":
        key = "hosts" if profile.scheduler.hostfile is None else "hostfile"
        place = site_data.merged.origin("scheduler", key).place
        hosts, site_hosts = this_machine.job_hosts(profile, job, avoid, names, folder, place)
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
        this_machine.listed_nodes(profile.bad_nodes.file, names),
        this_machine.submitter(),
        hosts[: job.max_nodes],
        hosts[job.max_nodes :],
        site_hosts,
        away,
    )
    reason = detected.chosen.reason if detected and detected.chosen else None
    return Loaded(resolved, document.text, site_data.text, reason)


def _named_site(
    requested: str | None, override: Layer, job: Document, project: Path
) -> tuple[str, Place | None] | None:
    """The site specified by `--site`, `--set site=`, the job file or $HPC_LAUNCH_SITE, in this order.

    A file named in the job file is relative to it: another person may have put one into the current folder.
    """
    in_job = job.data.get("site")
    if isinstance(in_job, str) and is_file_name(in_job):
        in_job = str(project / os.path.expanduser(in_job))
    candidates = (
        (requested, Place("--site")),
        (override.data.get("site"), override.places.get(("site",))),
        (in_job, job.places.get(("site",))),
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
    try:
        if site_name is not None:
            return read_named_site(*site_name, project, overlay, findings)
        chosen = (detected or Detection(None, (), (), None)).required(job.places.get(()))
    except Refused as refused:
        findings += refused.findings
        return None
    return read_site(chosen.path, overlay, findings, folders=search_folders(project))
