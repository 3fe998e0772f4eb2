"""Check the files that a job names on this machine: script, program, environment, image, data and secrets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shlex import quote

from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.job.container import Container, Data
from hpc_launch.job.document import KeyPath
from hpc_launch.plan.container_plan import check_architecture, is_file, runtime_and_image
from hpc_launch.plan.job_size import job_size
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.sites.resolved import Resolved
from hpc_launch.sites.this_machine import conda_problem

SHELL_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
Report = Callable[[KeyPath, str, str, str, str], None]
"""Add a finding. Arguments: key, what the path is, problem, hint, path."""


def check_files(resolved: Resolved, findings: list[Finding]) -> None:
    """Add a finding for each file or folder of the job that does not exist or cannot be read on this machine."""
    job = resolved.job
    filler = ValueFiller(resolved, [])  # the plan has already reported what this one would
    relative = f"relative paths start at {resolved.job_folder}"

    def report(key: KeyPath, what: str, problem: str, hint: str, path: str) -> None:
        if resolved.elsewhere and not path.startswith(f"{resolved.job_folder}/"):
            message = f"not checked here: {what}"
            hint = f"no rule recognizes this machine as site {resolved.site.name}; `submit` there checks it"
            findings.append(Finding(FindingCode.NOT_CHECKED_HERE, message, resolved.place(*key), hint, "warning"))
            return
        findings.append(Finding(FindingCode.FILE_NOT_FOUND, f"{what} {problem}", resolved.place(*key), hint))

    def check_file(key: KeyPath, what: str, name: str, hint: str) -> None:
        path = filler.file(name, key)
        if not _readable(path):
            report(key, f"{what} {path}", _file_problem(path), hint, path)

    if job.script is not None:
        check_file(("script",), "the script", job.script, _command_line(job.script) or relative)
        path = filler.file(job.script, ("script",))
        if path.endswith(SHELL_SCRIPTS) and _readable(path):
            message = f"the script {path} is not a Python file, and {job.launcher.name} starts it with Python"
            hint = f"write `command: [bash, {job.script}]`, with `launcher: none` if it starts processes"
            findings.append(Finding(FindingCode.INVALID_COMMAND, message, resolved.place("script"), hint))
    if job.command is not None and job.container is None:
        first = (job.command if isinstance(job.command, list) else job.command.split() or [""])[0]
        path = os.path.join(filler.file(job.workdir or ".", ("workdir",)), filler.static(first, ("command",)))
        if "/" in first and os.path.isfile(path) and not os.access(path, os.X_OK):  # the job may make it first
            hint = f"run `chmod +x {path}`, or write its interpreter before it"
            report(("command",), f"the program {path}", "is not executable", hint, path)
    if job.workdir is not None:
        folder = filler.file(job.workdir, ("workdir",))
        if not os.path.isdir(folder):
            problem = "is not a folder" if os.path.exists(folder) else "does not exist"
            report(("workdir",), f"the working directory {folder}", problem, relative, folder)
    if job.environment.venv is not None:
        venv = filler.file(job.environment.venv, ("environment", "venv"))
        if not _readable(os.path.join(venv, "bin", "activate")):
            problem, hint = "does not exist", relative
            if os.path.exists(venv):
                problem, hint = "has no readable bin/activate", "name a folder created by `python -m venv`"
            report(("environment", "venv"), f"the virtual environment {venv}", problem, hint, venv)
    if job.environment.conda is not None:
        name = filler.static(job.environment.conda, ("environment", "conda"))
        missing = conda_problem(name, job.environment, resolved.job_folder)
        if missing is not None:
            hint = f"run `conda create --{'prefix' if '/' in name else 'name'} {name} python`, or correct the name"
            report(("environment", "conda"), f"the conda environment {name}", missing, hint, name)
    if job.container is not None:
        _check_container(filler, job.container, report)
        _check_architecture(ValueFiller(resolved, findings), job.container)
    if job.data is not None:
        _check_data(ValueFiller(resolved, findings), job.data, report)
    for index, name in enumerate(job.environment.source):
        check_file(("environment", "source", index), "the file", name, "the job would source it")


def _command_line(script: str) -> str | None:
    """Hint for a `script` that is a whole command line."""
    words = script.split()
    file = next((word for word in words if word.endswith(".py")), None)
    if file is None or len(words) == 1:
        return None
    rest = " ".join(words[words.index(file) + 1 :])
    return f"write `script: {file}`" + (f", and `{rest}` under `args`" if rest else "")


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
    from hpc_launch.images.image_record import architecture

    with suppress(OSError):  # a missing image has its own finding
        arch = architecture(Path(image))
        if arch is not None:
            check_architecture(filler, size, arch)


MANY_FILES, LONGEST_S = 100_000, 2.0
"""Where the count of files ends. More of them are slow on these file systems, and so are those that take longer."""
SLOW = ("lustre", "nfs", "nfs4")


def _check_data(filler: ValueFiller, asked: Data, report: Report) -> None:
    from hpc_launch.agent.folders import file_system
    from hpc_launch.agent.stage_data import files_of, kind_of
    from hpc_launch.agent.stage_environment import NotStaged

    path, kind, problem = filler.file(asked.source, ("data", "from")), "", ""
    try:
        if asked.shard:
            files_of(path, filler.resolved.job.max_nodes)
        else:
            kind = kind_of(path)
    except NotStaged as error:
        problem = str(error).removeprefix(f"{path} ")
    except OSError:
        problem = _file_problem(path)
    if problem:
        report(("data", "from"), f"the data {path}", problem, "create it before the job starts", path)
    elif asked.how == "mount" and kind not in ("squashfs", ""):
        message, hint = f"{path} is not a squashfs image, so it cannot be mounted", "use `how: copy`"
        filler.fault(FindingCode.DATA_NOT_POSSIBLE, message, ("data", "how"), hint)
    elif kind == "folder" and file_system(path) in SLOW and (count := count_files(path, MANY_FILES, LONGEST_S)):
        message = f"{path} has at least {count:,} files, which are slow to open on {file_system(path)}"
        hint = f"run `mksquashfs {quote(path)} {quote(path)}.sqsh` once, and write `data: {path}.sqsh`"
        filler.fault(FindingCode.MANY_SMALL_FILES, message, ("data", "from"), hint, "warning")


def count_files(folder: str, most: int, seconds: float) -> int:
    """The number of files when it has reached `most`, or when the time is over; 0 if there are fewer."""
    end, count, left = time.monotonic() + seconds, 0, [folder]
    while left:
        with suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                    continue
                count += 1
                if count >= most or time.monotonic() > end:
                    return count
    return 0


def _readable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def _file_problem(path: str) -> str:
    """Why a path is not a readable file."""
    if os.path.isdir(path):
        return "is a folder, not a file"
    return "cannot be read" if os.path.exists(path) else "does not exist"
