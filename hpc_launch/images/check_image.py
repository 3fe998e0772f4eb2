"""`containers check`: check an image against the job, its nodes and its network before queueing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.errors import UserError
from hpc_launch.images.compatibility import (
    Check,
    architecture,
    check_driver,
    check_fabric,
    check_nccl,
    check_torch,
    cut_short,
    required_libraries,
)
from hpc_launch.images.image_record import read_record
from hpc_launch.images.probe import probe_as_job
from hpc_launch.images.training_source import needed_modules
from hpc_launch.job.shell_text import plain
from hpc_launch.plan.container_plan import is_file
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.runtimes.container_runtimes import ContainerPlan, runtime_of
from hpc_launch.sites.queues import Fabric

WRITABLE = ("/tmp", "/dev/shm")  # noqa: S108 - folders that programs in the image write to


class Requirements(Struct, frozen=True, kw_only=True):
    """What the image must provide. `arch`, `vendor` and `driver` are the nodes'; None means unknown."""

    container: ContainerPlan
    plan: LaunchPlan | None = None
    """What starts in it, if a job does."""
    script: str | None = None
    module: str | None = None
    arch: str | None = None
    vendor: str | None = None
    driver: str | None = None
    torch: str | None = None
    fabric: Fabric = Fabric()
    libraries: list[str] | None = None

    @property
    def launcher(self) -> bool:
        """Whether PyTorch or DeepSpeed starts the processes, and so must be in the image."""
        return self.plan is not None and descriptor(self.plan.launcher).in_image

    @property
    def program(self) -> str | None:
        """The program that the job starts, if it is a command."""
        return plain(self.plan.program.words[0]) if self.plan and self.plan.program.kind == "command" else None


def check(required: Requirements) -> Iterator[Check]:
    """Run the checks, ordered so that the first failure explains those after it."""
    container = required.container
    file = Path(container.image)
    if is_file(container.runtime, container.image):
        if not os.path.exists(file):
            yield Check("image", "fail", f"{file} not found", "build or pull it: see `hpc-launch containers --help`")
            return
        try:
            yield _check_record(file)
            architecture_ = _check_architecture(file, required.arch)
        except OSError as error:
            yield Check("image", "fail", f"cannot read {file}: {error.strerror}", "name an image file or folder")
            return
        yield architecture_
        if architecture_.level == "fail":
            return
    yield from _check_binds(container)
    if container.started_by_srun:
        hint = "test it in a short job: `nodes: 1`, `command: python3 -c 'import torch'`"
        yield Check("inside", "skip", f"not checked: only srun starts images with {container.runtime}", hint)
        return
    runtime = runtime_of(container.runtime)
    if "://" in container.image and runtime.files:
        yield Check("inside", "skip", "not checked: each node pulls the image itself")
        return
    program = runtime.program or runtime.name
    if shutil.which(program) is None:
        hint = f"load the module of {program}, or check on a compute node"
        yield Check("inside", "skip", f"not checked: {program} not found on this machine", hint)
        return
    groups = required_libraries(required.fabric.kind, required.fabric.plugin, required.libraries)
    try:
        names, unread = needed_modules(required.script, required.module, torch=required.launcher)
        request: dict[str, object] = {
            "imports": names,
            "folders": [os.path.dirname(required.script)] if required.script else [container.workdir],
            "libraries": [name for group in groups for name in group],
            "program": required.program,
            "import_torch": True,
            "writable": list(WRITABLE),
        }
        answer = probe_as_job(container, required.plan, request)
    except UserError as error:
        yield Check("inside", "fail", f"cannot run Python in the image: {error}", error.hint)
        return
    python = f"Python {answer['python']} at {answer['executable']}"
    yield Check("python", "ok", python)
    if answer["bash"]:
        yield Check("bash", "ok", f"bash at {answer['bash']}")
    else:
        yield Check("bash", "warn", "bash not found in the image; setup steps inside it and DeepSpeed need it")
    yield check_torch(answer["torch"], required.vendor, needed=required.launcher, declared=required.torch)
    if answer["torch"]:
        yield check_nccl(answer.get("torch_import"), required.vendor)
    yield check_driver(answer["torch"], required.vendor, required.driver, compat=answer["compat"])
    yield _check_imports(required, answer, names, unread)
    yield check_fabric(required.fabric.kind, groups, answer["libraries"], must=required.fabric.net is not None)
    yield from _check_writable(answer)


def _check_record(image: Path) -> Check:
    """Compare the size with the record. Only `pull` computes the digest, which reads tens of gigabytes."""
    record = read_record(image)
    if os.path.isfile(image) and cut_short(image):
        return Check("image", "fail", f"{image} is shorter than its header says", "pull or build it again with --force")
    if record is None or os.path.isdir(image):
        return Check("image", "ok", f"{image}, without a record of its source")
    if record.size != image.stat().st_size:
        message = f"{image} has {image.stat().st_size} bytes, but its record says {record.size}"
        return Check("image", "fail", message, "it was modified or truncated; pull or build it again with --force")
    return Check("image", "ok", f"{image}, from {record.source}, {record.made}")


def _check_architecture(image: Path, nodes: str | None) -> Check:
    arch = architecture(image)
    if arch is None:
        return Check("architecture", "skip", "the file does not state its CPU architecture")
    if nodes is None:
        hint = "set it in the profile: `node_classes: {NAME: {arch: x86_64}}`"
        return Check("architecture", "skip", f"for {arch}; the nodes' architecture is unknown", hint)
    if arch != nodes:
        return Check("architecture", "fail", f"for {arch}, but the nodes are {nodes}", f"build or pull it on {nodes}")
    return Check("architecture", "ok", f"{arch}, like the nodes")


def _check_binds(container: ContainerPlan) -> Iterator[Check]:
    named = [text for bind in container.binds if (text := plain(bind)) is not None]
    absent = [source for bind in named if not os.path.exists(source := bind.partition(":")[0])]
    for source in absent:
        yield Check("binds", "fail", f"cannot bind {source}: not found", "create it, or remove the bind")
    if named and not absent:
        yield Check("binds", "ok", f"all {len(named)} binds exist")


def _check_imports(required: Requirements, answer: Mapping[str, Any], names: list[str], unread: str | None) -> Check:
    if unread is not None:
        return Check("imports", "fail", unread)
    if required.program is not None and not answer["program"]:
        return Check("imports", "fail", f"{required.program} not found in the image", "give its path in the image")
    if answer["missing"]:
        hint = "use an image that has them, or a venv in `container.prelude`"
        return Check("imports", "fail", f"not found in the image: {', '.join(answer['missing'])}", hint)
    if not names:
        about = f"{required.program} at {answer['program']}" if required.program else "no script given"
        return Check("imports", "ok" if required.program else "skip", about)
    return Check("imports", "ok", f"found all {len(names)} modules that the script imports at the top")


def _check_writable(answer: Mapping[str, Any]) -> Iterator[Check]:
    refused = [path for path, can in answer["writable"].items() if not can]
    if answer["run_folder"] in refused:
        hint = "check the runtime's settings for binds"
        yield Check("writable", "fail", "the run folder will not be writable in the container", hint)
    elif refused:
        message = f"{' and '.join(refused)} not writable in the container"
        yield Check("writable", "warn", message, "set `container: {writable: true}`")
    else:
        yield Check("writable", "ok", "the run folder and the folders for temporary files are writable")
