"""`containers check`: check an image against the job, its nodes and its network before queueing.

PyTorch's build and the GPUs, the driver, NCCL, the libraries of the network.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from hpc_launch.base.errors import UserError
from hpc_launch.images.image_record import architecture, cut_short, read_record
from hpc_launch.images.probe import probe_as_job
from hpc_launch.images.training_source import needed_modules
from hpc_launch.job.shell_text import plain
from hpc_launch.plan.container_plan import is_file
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.runtimes.container_runtimes import ContainerPlan, runtime_of
from hpc_launch.sites.job_settings import version_numbers
from hpc_launch.sites.queues import Fabric

Level = Literal["ok", "warn", "fail", "skip"]


class Check(Struct, frozen=True):
    """The result of one check, an object of `containers check --json`.

    `skip`: it could not be made, for the reason in the message.
    """

    name: str
    level: Level
    message: str
    hint: str | None = None


CUDA_DRIVERS = (((13, 0), "580"), ((12, 0), "525"), ((11, 0), "450"), ((10, 2), "440.33"), ((10, 1), "418.39"))
"""The oldest Linux driver by CUDA release; since 11, one per major release ("minor version compatibility",
docs.nvidia.com/deploy/cuda-compatibility, tables 1 and 2)."""

NETWORK_LIBRARIES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "slingshot": (("libnccl-net", "librccl-net"), ("libfabric.so.1",)),
    "efa": (("libnccl-net", "librccl-net"), ("libfabric.so.1",)),
    "gcp": (("libnccl-net",),),
    "infiniband": (("libibverbs.so.1",),),
    "roce": (("libibverbs.so.1",),),
    "omni-path": (),
    "ethernet": (),
}
"""Libraries that NCCL needs for each network: one of each group. InfiniBand support is built into NCCL, which loads
libibverbs (NCCL's ibvwrap.cc); Slingshot and EFA need aws-ofi-nccl over libfabric (its README), GCP's networks their
own plugin."""


def minimum_driver(cuda: str) -> str | None:
    """The oldest driver for a CUDA release; None if the table has none."""
    wanted = version_numbers(cuda)
    for release, driver in CUDA_DRIVERS:
        if wanted >= release:
            return driver if wanted[0] <= CUDA_DRIVERS[0][0][0] else None
    return None


def check_torch(torch: Mapping[str, str | None], vendor: str | None, *, needed: bool, declared: str | None) -> Check:
    """Whether the image has PyTorch, built for these GPUs. `vendor` is None for a job without GPUs."""
    installed = torch.get("version")
    if not installed:
        if needed:
            hint = "use an image with PyTorch, or a venv in `container.prelude`"
            return Check("torch", "fail", "PyTorch, which contains the launcher, not found in the image", hint)
        return Check("torch", "warn", "PyTorch not found in the image")
    cuda, hip = torch.get("cuda"), torch.get("hip")
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU only"
    summary = f"PyTorch {installed} for {build}"
    wrong = {"nvidia": cuda is None, "amd": hip is None}.get(vendor or "", False)
    if wrong:
        platform = "CUDA" if vendor == "nvidia" else "ROCm"
        message = f"{summary}, but the nodes' GPUs need {platform}"
        return Check("torch", "fail", message, f"use an image built for {platform}")
    if declared is not None and version_numbers(declared)[:2] != version_numbers(installed)[:2]:
        hint = "fix `torch` of the image in the site profile, or of `environment` in the job: it selects options"
        return Check("torch", "fail", f"{summary}, but {declared} is declared", hint)
    return Check("torch", "ok", summary)


def check_driver(torch: Mapping[str, str | None], vendor: str | None, driver: str | None, *, compat: bool) -> Check:
    """Whether the nodes' driver is new enough. `compat`: the image has CUDA's forward compatibility libraries."""
    cuda, hip = torch.get("cuda"), torch.get("hip")
    if vendor is None or not (cuda or hip):
        return Check("driver", "skip", "no GPUs, so no driver needed")
    if driver is None:
        hint = "set it in the profile: `node_classes: {NAME: {versions: {driver: '580.65'}}}`"
        return Check("driver", "skip", "the nodes' driver is unknown, and this machine has none", hint)
    minimum = minimum_driver(cuda or "") if vendor == "nvidia" else None
    if minimum is None:
        known = f"CUDA {cuda}" if cuda else f"ROCm {hip}"
        return Check("driver", "skip", f"the minimum driver for {known} is unknown")
    if version_numbers(driver) >= version_numbers(minimum):
        return Check("driver", "ok", f"driver {driver}; CUDA {cuda} needs {minimum} or newer")
    message = f"driver {driver} is too old for CUDA {cuda}, which needs {minimum} or newer"
    if compat:
        hint = "test it on one node: the image has CUDA's compatibility libraries, which work on data center GPUs"
        return Check("driver", "warn", message, hint)
    return Check("driver", "fail", message, "use an image with an older CUDA")


def check_nccl(imported: Mapping[str, object] | None, vendor: str | None) -> Check:
    """The communication backends that PyTorch reports after `import torch`."""
    if imported is None:
        return Check("nccl", "skip", "PyTorch not found")
    if imported.get("fault"):
        hint = "check for a library missing in the image; on a login node it may only be the GPU driver"
        return Check("nccl", "fail", f"`import torch` fails: {imported['fault']}", hint)
    if imported.get("nccl"):
        return Check("nccl", "ok", f"{'RCCL' if vendor == 'amd' else 'NCCL'} {imported['nccl']}, according to PyTorch")
    if vendor is not None:
        return Check("nccl", "fail", "this PyTorch has no NCCL, which training on several GPUs needs")
    gloo = bool(imported.get("gloo"))
    return Check("nccl", "ok" if gloo else "warn", f"no GPUs; Gloo is {'available' if gloo else 'not available'}")


def required_libraries(
    kind: str | None, plugin: str | None, libraries: Iterable[str] | None
) -> tuple[tuple[str, ...], ...]:
    """Groups of shared libraries, one of each of which the image needs, from the site profile or its network kind."""
    if libraries is not None:
        return tuple((name,) for name in libraries)
    if plugin == "none":
        return ()
    groups = NETWORK_LIBRARIES.get(kind or "", ())
    if not plugin:
        return groups
    named = (plugin,) if plugin.startswith("lib") else (f"libnccl-net-{plugin}", "libnccl-net")
    return (named, *(group for group in groups if not group[0].startswith("libnccl-net")))


def check_fabric(
    kind: str | None, groups: tuple[tuple[str, ...], ...], paths: Mapping[str, str | None], *, must: bool
) -> Check:
    """Whether the image has the fast network's libraries. `must`: NCCL_NET forces this network."""
    if not groups:
        known = f"{kind} needs no library besides NCCL" if kind else "the site profile names no fast network"
        return Check("fabric", "ok" if kind else "skip", known)
    absent = [" or ".join(group) for group in groups if not any(paths.get(name) for name in group)]
    if not absent:
        present = ", ".join(str(next(paths[name] for name in group if paths.get(name))) for group in groups)
        return Check("fabric", "ok", f"{kind or 'the network'}: {present}")
    message = f"{kind or 'the network'}: {', '.join(absent)} not found in the image"
    hint = "bind the site's libraries with `binds` and LD_LIBRARY_PATH, or use an image that has them"
    if must:
        return Check("fabric", "fail", f"{message}, and NCCL_NET allows no other network", hint)
    return Check("fabric", "warn", f"{message}; NCCL would silently fall back to TCP", hint)


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
    binds = [text for bind in container.binds if (text := plain(bind)) is not None]
    absent = [source for bind in binds if not os.path.exists(source := bind.partition(":")[0])]
    for source in absent:
        yield Check("binds", "fail", f"cannot bind {source}: not found", "create it, or remove the bind")
    if binds and not absent:
        yield Check("binds", "ok", f"all {len(binds)} binds exist")
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
