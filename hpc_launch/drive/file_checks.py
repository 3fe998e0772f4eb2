"""Whether what the job names is there: its script, its folders, its files. Asked on the machine that submits."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.plan.container_plan import FILES, check_architecture, runtime_and_image
from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.job_size import job_size
from hpc_launch.sites.resolved import Resolved
from hpc_launch.spec.container import Container
from hpc_launch.spec.document import KeyPath

Missing = Callable[[KeyPath, str, str, str], None]


def check_files(resolved: Resolved, findings: list[Finding]) -> None:
    """Add a finding for each file or folder of the job that cannot be found or read."""
    job = resolved.job
    filler = ValueFiller(resolved, [])  # its faults were noted when the plan was built

    def missing(path: KeyPath, what: str, name: str, hint: str) -> None:
        findings.append(Finding(FindingCode.FILE_NOT_FOUND, f"{what} {name} {_why(name)}", resolved.place(*path), hint))

    if job.script is not None:
        script = filler.file(job.script, ("script",))
        if not _readable(script):
            missing(("script",), "the script", script, f"a relative path starts at {resolved.job_folder}")
    if job.workdir is not None:
        folder = filler.file(job.workdir, ("workdir",))
        if not os.path.isdir(folder):
            missing(("workdir",), "the work folder", folder, f"a relative path starts at {resolved.job_folder}")
    if job.environment.venv is not None:
        venv = filler.file(job.environment.venv, ("environment", "venv"))
        if not _readable(os.path.join(venv, "bin", "activate")):
            missing(("environment", "venv"), "the virtual environment", venv, "it has to hold bin/activate")
    if job.container is not None:
        _check_container(filler, job.container, missing)
        _check_architecture(ValueFiller(resolved, findings), job.container)
    for index, name in enumerate(job.environment.source):
        path: KeyPath = ("environment", "source", index)
        file = filler.file(name, path)
        if not _readable(file):
            missing(path, "the file", file, "it would be sourced in the job")


def _check_container(filler: ValueFiller, container: Container, missing: Missing) -> None:
    """The image, where it is a file, and the folders that are to be seen inside."""
    runtime, image = runtime_and_image(filler, container)
    if runtime in FILES and "://" not in image and not os.path.exists(image):
        known = ", ".join(filler.resolved.site.containers.images) or "none"
        missing(("container", "image"), "the image", image, f"the site's own images: {known}")
    for index, bind in enumerate(container.binds):
        path: KeyPath = ("container", "binds", index)
        source = filler.absolute(filler.static(bind, path).partition(":")[0])
        if not os.path.exists(source):
            missing(path, "the folder to bind", source, "it has to be there when the job starts")


def _check_architecture(filler: ValueFiller, container: Container) -> None:
    """HL470 by the image's own header, unless what the site declares of it was wrong already."""
    known = ValueFiller(filler.resolved, [])
    form, (runtime, image) = job_size(known), runtime_and_image(known, container)
    if (
        form is None
        or runtime not in FILES
        or any(finding.code == FindingCode.WRONG_IMAGE_ARCHITECTURE for finding in filler.findings)
    ):
        return
    from hpc_launch.images.architecture import architecture

    with suppress(OSError):  # that it is not there was said
        arch = architecture(Path(image))
        if arch is not None:
            check_architecture(filler, form, arch)


def _readable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def _why(path: str) -> str:
    if os.path.isdir(path):
        return "is a folder" if not os.access(path, os.X_OK) else "is not what it should be"
    return "cannot be read" if os.path.exists(path) else "is not there"
