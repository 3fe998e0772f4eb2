"""Check on the submitting machine that the files and folders named by the job exist and can be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.container import Container
from hpc_launch.job.document import KeyPath
from hpc_launch.plan.container_plan import check_architecture, is_file, runtime_and_image
from hpc_launch.plan.job_size import job_size
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.sites.resolved import Resolved

Report = Callable[[KeyPath, str, str, str, str], None]
"""Add a finding. Arguments: key, what the path is, problem, hint, path."""


def check_files(resolved: Resolved, findings: list[Finding]) -> None:
    """Add a finding for each file or folder of the job that does not exist or cannot be read."""
    job = resolved.job
    filler = ValueFiller(resolved, [])  # the plan has already reported what this one would
    relative = f"relative paths start at {resolved.job_folder}"

    def report(key: KeyPath, what: str, problem: str, hint: str, path: str) -> None:
        if resolved.elsewhere and not path.startswith(f"{resolved.job_folder}/"):
            message, hint = (
                f"not checked here: {what}",
                f"no rule recognizes this machine as site {resolved.site.name}; `submit` there checks it",
            )
            findings.append(Finding(FindingCode.NOT_CHECKED_HERE, message, resolved.place(*key), hint, "warning"))
            return
        findings.append(Finding(FindingCode.FILE_NOT_FOUND, f"{what} {problem}", resolved.place(*key), hint))

    if job.script is not None:
        script = filler.file(job.script, ("script",))
        if not _readable(script):
            report(("script",), f"the script {script}", _file_problem(script), relative, script)
    if job.workdir is not None:
        folder = filler.file(job.workdir, ("workdir",))
        if not os.path.isdir(folder):
            problem = "is not a folder" if os.path.exists(folder) else "does not exist"
            report(("workdir",), f"the working directory {folder}", problem, relative, folder)
    if job.environment.venv is not None:
        venv = filler.file(job.environment.venv, ("environment", "venv"))
        activate = os.path.join(venv, "bin", "activate")
        if not _readable(activate):
            what = f"the virtual environment {venv}"
            if not os.path.exists(venv):
                report(("environment", "venv"), what, "does not exist", relative, venv)
            else:
                hint = "name a folder created by `python -m venv`"
                report(("environment", "venv"), what, "has no readable bin/activate", hint, venv)
    if job.container is not None:
        _check_container(filler, job.container, report)
        _check_architecture(ValueFiller(resolved, findings), job.container)
    for index, name in enumerate(job.environment.source):
        key: KeyPath = ("environment", "source", index)
        file = filler.file(name, key)
        if not _readable(file):
            report(key, f"the file {file}", _file_problem(file), "the job would source it", file)


def _check_container(filler: ValueFiller, container: Container, report: Report) -> None:
    """Check the image, if it is a file, and the bind sources."""
    runtime, image = runtime_and_image(filler, container)
    if is_file(runtime, image) and not os.path.exists(image):
        known = ", ".join(filler.resolved.site.containers.images) or "none"
        report(("container", "image"), f"the image {image}", "does not exist", f"images of the site: {known}", image)
    for index, bind in enumerate(container.binds):
        key: KeyPath = ("container", "binds", index)
        source = filler.absolute(filler.static(bind, key).partition(":")[0])
        if not os.path.exists(source):
            report(key, f"the bind source {source}", "does not exist", "create it before the job starts", source)


def _check_architecture(filler: ValueFiller, container: Container) -> None:
    """Check the architecture in the image file's header (HL470), unless the site's declaration already failed."""
    known = ValueFiller(filler.resolved, [])
    size, (runtime, image) = job_size(known), runtime_and_image(known, container)
    failed = any(finding.code == FindingCode.WRONG_IMAGE_ARCHITECTURE for finding in filler.findings)
    if size is None or failed or not is_file(runtime, image):
        return
    from hpc_launch.images.compatibility import architecture

    with suppress(OSError):  # a missing image has its own finding
        arch = architecture(Path(image))
        if arch is not None:
            check_architecture(filler, size, arch)


def _readable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def _file_problem(path: str) -> str:
    """Why a path is not a readable file."""
    if os.path.isdir(path):
        return "is a folder, not a file"
    return "cannot be read" if os.path.exists(path) else "does not exist"
