"""`containers check`: does the image fit the job, its nodes and its network? Looked at before anything is queued."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.errors import UserError
from hpc_launch.images.architecture import architecture, cut_short
from hpc_launch.images.compatibility import Check, check_driver, check_fabric, check_nccl, check_torch, wanted_libraries
from hpc_launch.images.image_record import read_record
from hpc_launch.images.script_imports import top_imports
from hpc_launch.images.start_image import look_as_the_job
from hpc_launch.plan.launch_plan import ContainerPlan, SiteStep, Variable
from hpc_launch.spec.shell_text import plain

BY_SRUN = frozenset({"pyxis", "edf"})
RUN_BY = {"charliecloud": "ch-run"}
"""Programs of runtimes that are called otherwise."""

FILES = frozenset({"apptainer", "singularity", "charliecloud"})
EVERYWHERE = ("/tmp", "/dev/shm")  # noqa: S108 - what programs in the image write to


class Wanted(Struct, frozen=True, kw_only=True):
    """What the image is looked at for. `arch`, `vendor` and `driver` are of the nodes; None: not known."""

    container: ContainerPlan
    python: str = "python3"
    launcher: bool = False
    """Whether PyTorch or DeepSpeed starts the processes, and so has to be inside."""
    script: str | None = None
    module: str | None = None
    program: str | None = None
    arch: str | None = None
    vendor: str | None = None
    driver: str | None = None
    torch: str | None = None
    fabric: str | None = None
    plugin: str | None = None
    net: str | None = None
    libraries: tuple[str, ...] | None = None
    variables: tuple[Variable, ...] = ()
    inside: tuple[SiteStep, ...] = ()


def check(wanted: Wanted) -> Iterator[Check]:
    """Each thing that was looked at, in an order in which the first failure explains those after it."""
    container = wanted.container
    file = Path(container.image)
    if container.runtime in FILES and "://" not in container.image:
        if not os.path.exists(file):
            yield Check("image", "fail", f"{file} is not there", "build or pull it: `hpc-launch containers --help`")
            return
        try:
            yield _check_record(file)
            architecture_ = _check_architecture(file, wanted.arch)
        except OSError as error:
            yield Check("image", "fail", f"{file} cannot be read: {error.strerror}", "name an image file or its folder")
            return
        yield architecture_
        if architecture_.level == "fail":
            return
    yield from _check_binds(container)
    if container.runtime in BY_SRUN:
        hint = "try it in a short job: `nodes: 1`, `command: python3 -c 'import torch'`"
        yield Check(
            "inside", "skip", f"srun alone starts images with {container.runtime}: it was not looked into", hint
        )
        return
    if "://" in container.image and container.runtime in FILES:
        yield Check("inside", "skip", "each node fetches the image by itself, so it was not looked into")
        return
    program = RUN_BY.get(container.runtime, container.runtime)
    if shutil.which(program) is None:
        hint = f"load the module of {program} first, or check on a compute node"
        yield Check("inside", "skip", f"{program} is not on this machine, so it was not looked into", hint)
        return
    groups = wanted_libraries(wanted.fabric, wanted.plugin, wanted.libraries)
    try:
        names, unread = _imports(wanted)
        asked: dict[str, object] = {
            "imports": names,
            "folders": [os.path.dirname(wanted.script)] if wanted.script else [container.workdir],
            "libraries": [name for group in groups for name in group],
            "program": wanted.program,
            "import_torch": True,
            "writable": list(EVERYWHERE),
            "seen": [os.path.expanduser("~")],
        }
        said = look_as_the_job(container, wanted.python, asked, wanted.variables, wanted.inside)
    except UserError as error:
        yield Check("inside", "fail", f"the image does not start with {wanted.python} in it: {error}", error.hint)
        return
    python = f"Python {said['python']} at {said['executable']}"
    yield Check("python", "ok", python)
    if said["bash"]:
        yield Check("bash", "ok", f"bash at {said['bash']}")
    else:
        yield Check("bash", "warn", "there is no bash in the image, which steps inside it and DeepSpeed need")
    yield check_torch(said["torch"], wanted.vendor, needed=wanted.launcher, declared=wanted.torch)
    if said["torch"]:
        yield check_nccl(said.get("torch_words"), wanted.vendor)
    yield check_driver(
        said["torch"], wanted.vendor, wanted.driver or _driver_here(wanted.vendor), compat=said["compat"]
    )
    yield _check_imports(wanted, said, names, unread)
    yield check_fabric(wanted.fabric, groups, said["libraries"], must=wanted.net is not None)
    yield from _check_writable(said)


def _check_record(image: Path) -> Check:
    """By its size alone: reading tens of gigabytes is for `pull`."""
    record = read_record(image)
    if image.is_file() and cut_short(image):
        return Check("image", "fail", f"{image} is shorter than its header says", "pull or build it again with --force")
    if record is None or image.is_dir():
        return Check("image", "ok", f"{image}, of which no record says where it is from")
    if record.size != image.stat().st_size:
        message = f"{image} has {image.stat().st_size} bytes, and its record says {record.size}"
        return Check("image", "fail", message, "it was changed or cut short; pull or build it again with --force")
    return Check("image", "ok", f"{image}, from {record.source}, {record.made}")


def _check_architecture(image: Path, nodes: str | None) -> Check:
    arch = architecture(image)
    if arch is None:
        return Check("architecture", "skip", "the file does not tell for which processor it is")
    if nodes is None:
        hint = "say it in the profile: `node_classes: {NAME: {arch: x86_64}}`"
        return Check("architecture", "skip", f"for {arch}; what the nodes are is not known", hint)
    if arch != nodes:
        return Check("architecture", "fail", f"for {arch}, and the nodes are {nodes}", f"build or pull it on {nodes}")
    return Check("architecture", "ok", f"{arch}, as the nodes are")


def _check_binds(container: ContainerPlan) -> Iterator[Check]:
    named = [text for bind in container.binds if (text := plain(bind)) is not None]
    lost = [source for bind in named if not os.path.exists(source := bind.partition(":")[0])]
    for source in lost:
        yield Check("binds", "fail", f"{source} is not there to bind", "make it, or take the bind out")
    if named and not lost:
        yield Check("binds", "ok", f"all {len(named)} binds are there")


def _imports(wanted: Wanted) -> tuple[list[str], str | None]:
    """What has to be found inside, and why a script could not be read."""
    names = {"torch"} if wanted.launcher else set()
    if wanted.module is not None:
        names.add(wanted.module)
    unread = None
    if wanted.script is not None:
        try:
            names |= top_imports(Path(wanted.script))
        except (OSError, SyntaxError, ValueError) as error:
            unread = f"{wanted.script} cannot be read: {error}"
    return sorted(names), unread


def _check_imports(wanted: Wanted, said: Mapping[str, Any], names: list[str], unread: str | None) -> Check:
    if unread is not None:
        return Check("imports", "fail", unread)
    if wanted.program is not None and not said["program"]:
        return Check("imports", "fail", f"there is no program {wanted.program} inside", "name it by its path inside")
    if said["missing"]:
        hint = "use an image that has them, or a venv in `container.prelude`"
        return Check("imports", "fail", f"not found inside: {', '.join(said['missing'])}", hint)
    if not names:
        about = f"{wanted.program} at {said['program']}" if wanted.program else "no script was named"
        return Check("imports", "ok" if wanted.program else "skip", about)
    return Check("imports", "ok", f"all {len(names)} modules that it imports at its beginning are there")


def _check_writable(said: Mapping[str, Any]) -> Iterator[Check]:
    for path, can in said["writable"].items():
        if not can and path == said["run_folder"]:
            message = "a folder as the run folder will be cannot be written to inside"
            yield Check("writable", "fail", message, "look at the runtime's own settings for binds")
        elif not can:
            yield Check("writable", "warn", f"{path} cannot be written to inside", "`container: {writable: true}`")
    home = next(iter(said["seen"].values()), True)
    if home:
        yield Check("writable", "ok", "the run folder can be written to, and the home is seen")
    else:
        hint = (
            "caches go to the home by default: HF_HOME, TRITON_CACHE_DIR; the site's `caches:` or `env` can say where"
        )
        yield Check("writable", "ok", "the run folder can be written to; the home is not seen", hint)


def _driver_here(vendor: str | None) -> str | None:
    """The driver of this very machine, where it has one."""
    if vendor != "nvidia" or shutil.which("nvidia-smi") is None:
        return None
    with suppress(OSError, subprocess.SubprocessError):
        words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        return next((line.strip() for line in done.stdout.splitlines() if line.strip()), None)
    return None
