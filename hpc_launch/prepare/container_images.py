"""Build, pull and check images: resolve the site, the recipe or URI and the file, and lock the file meanwhile."""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from hpc_launch.base.errors import Refused, UsageError, UserError
from hpc_launch.base.files import make_folder
from hpc_launch.base.findings import Place
from hpc_launch.images.check_image import Check, Requirements, check
from hpc_launch.images.image_record import ImageRecord
from hpc_launch.images.probe import find_tool
from hpc_launch.images.pull_image import build, existing_record, file_name, find_recipe, pull, recorded, scheme
from hpc_launch.job.job_file import JobSource
from hpc_launch.job.shell_text import Text, UnknownName, interpolate, plain
from hpc_launch.runs.node_health_store import owner
from hpc_launch.runtimes.container_runtimes import ContainerPlan, runtime_of
from hpc_launch.sites import this_machine
from hpc_launch.sites.folders import Containers
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.queues import Fabric
from hpc_launch.sites.read_profile import load_site_profile

Report = Callable[[str], None]
"""Shows a line of progress."""

LONGEST_WAIT_S = 4 * 3600.0
"""How long a lock is waited for: another user can keep it for ever."""

POLL_S = 1.0


@contextmanager
def lock_image(image: Path, report: Report, *, longest: float = LONGEST_WAIT_S) -> Iterator[None]:
    """Hold the lock of an image. Waits for another holder and reports it once a minute. Raises UserError.

    The kernel frees the lock of a process that dies. A file system without locks has none: images appear by a rename.
    """
    lock = image.with_name(f".{image.name}.lock")
    begun, reported_at = time.monotonic(), -math.inf
    while (descriptor := _locked(lock)) is None:
        now = time.monotonic()
        if now - begun > longest:
            message = f"{owner(lock)} has kept {lock} for {longest / 60:.0f} minutes"
            raise UserError(message, f"have {lock} removed, or name another image with -o")
        if now - reported_at > 60:
            report(f"waiting: another process is writing {image}")
            reported_at = now
        time.sleep(POLL_S)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(lock: Path) -> int | None:
    """The descriptor of the locked file; None while another process has it. Raises UserError."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if isinstance(error, PermissionError) and os.path.lexists(lock):
            return None  # another user's
        message = f"cannot write to {lock.parent}: {error.strerror}"
        raise UserError(message, "name another file with -o") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        return descriptor  # no locks here
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.lstat(lock)):
            return descriptor
    os.close(descriptor)  # its holder removed it meanwhile
    return None


class BuiltImage(Struct, frozen=True):
    """An image file with its record."""

    path: str
    record: ImageRecord
    new: bool
    """Whether it was built or pulled now, rather than reused."""

    def as_json(self) -> dict[str, object]:
        """Return the JSON object of `containers build --json` and `pull --json`."""
        return {"path": self.path, "new": self.new, **asdict(self.record)}


def site_profile(name: str | None) -> SiteProfile | None:
    """Load the profile named by the argument or by $HPC_LAUNCH_SITE; None if neither is set. Raises Refused."""
    name = name or os.environ.get("HPC_LAUNCH_SITE")
    return load_site_profile(name, Place("--site")) if name else None


def build_for_site(
    name: str, output: str | None, site: SiteProfile | None, arguments: Sequence[str], report: Report, *, force: bool
) -> BuiltImage:
    """Build an image from a recipe. Raises UsageError if the image exists, unless `force` is set."""
    recipe = find_recipe(name)
    image = _image_path(output, f"{recipe.stem}.sif", site)
    tool = find_tool(site.containers.runtime if site else None)
    with lock_image(image, report):
        if os.path.exists(image) and not force:
            raise UsageError(f"{image} already exists", "rebuild it with --force, or name another file with -o")
        return BuiltImage(str(image), build(recipe, image, tool, arguments, report), new=True)


def pull_for_site(
    name: str, output: str | None, site: SiteProfile | None, digest: str | None, report: Report, *, force: bool
) -> BuiltImage:
    """Pull an image once; a second process waits and reuses it. Raises UsageError and what `pull` raises."""
    image_of_site = site.containers.images.get(name) if site else None
    uri = image_of_site.uri if image_of_site else name
    if uri is None:
        raise UsageError(f"image `{name}` of the profile has no `uri`", "add one to the profile, or give the URI")
    if scheme(uri) is None:
        known = (", ".join(site.containers.images) or "none") if site else "unknown, no site is named"
        raise UsageError(f"{uri} is not an image URI", f"write docker://NAME:TAG; images of the site: {known}")
    recorded(uri)  # refuses a URI that contains a password
    digest = digest or (image_of_site.digest if image_of_site else None)
    if image_of_site is not None and output is None:
        image = Path(_filled(image_of_site.path, site))
    else:
        image = _image_path(output, file_name(uri), site)
    with lock_image(image, report):
        record = None if force else existing_record(image, uri, digest, report)
        if record is not None:
            return BuiltImage(str(image), record, new=False)
        return BuiltImage(str(image), pull(uri, image, digest, report), new=True)


def check_job_image(job_file: JobSource, site: str | None, sets: Sequence[str]) -> list[Check]:
    """Check the image of a job against what the job needs. Errors of the job itself count as failed checks."""
    from hpc_launch.plan.job_size import condition_facts, job_size
    from hpc_launch.plan.plan_draft import ValueFiller
    from hpc_launch.prepare.prepare import prepare_job
    from hpc_launch.sites.queues import overlay_fabric

    try:
        prepared = prepare_job(job_file, site=site, sets=sets)
    except Refused as refused:
        return [
            Check("job", "fail" if finding.severity == "error" else "warn", str(finding), finding.hint)
            for finding in refused.findings
        ]
    plan, resolved = prepared.plan, prepared.loaded.resolved
    filler = ValueFiller(resolved, [])
    size, job = job_size(filler), resolved.job
    if plan.container is None or job.container is None or size is None:
        raise UsageError(f"{job_file} does not use an image", "add `container:` to it, or name an image file")
    fabric = overlay_fabric(resolved.site.fabric, size.node_class.fabric)[0]
    settings = resolved.site.containers
    declared = settings.images.get(job.container.image)
    required = Requirements(
        container=plan.container,
        plan=plan,
        script=filler.file(job.script, ("script",)) if job.script is not None else None,
        module=job.module,
        arch=size.node_class.arch,
        vendor=_vendor(plan.gpus_per_node, size.node_class.gpu_vendor),
        driver=condition_facts(filler, size).versions.get("driver"),
        torch=job.environment.torch or (declared.torch if declared else None),
        fabric=fabric if plan.nodes > 1 else replace(fabric, kind=None),
        libraries=settings.libraries,
    )
    return list(check(required))


def check_image_file(name: str, site: SiteProfile | None) -> list[Check]:
    """Check an image without a job: for the default queue of the site, or for this machine if no site is named."""
    settings = site.containers if site else Containers(runtime="apptainer")
    image_of_site = settings.images.get(name)
    path = _filled(image_of_site.path, site) if image_of_site else name
    if settings.runtime == "none":
        message = f"site {site.name if site else ''} has no container runtime"
        raise UsageError(message, "choose another site with --site")
    binds: list[Text] = []
    for bind in settings.binds:
        with suppress(UsageError):  # its names are known only in a job
            binds.append((_filled(bind, site),))
    queue = site.queues.get(site.queue_of(None)) if site else None
    node = site.node_classes.get(queue.node_class) if site and queue else None
    container = ContainerPlan(
        runtime=settings.runtime,
        image=os.path.abspath(path),
        binds=tuple(binds),
        workdir="/",
        gpus=None,
        home=settings.home,
        writable=settings.writable,
        options=tuple(settings.options),
        variables=(),
        started_by_srun=runtime_of(settings.runtime).of_srun,
    )
    required = Requirements(
        container=container,
        arch=node.arch if node else os.uname().machine,
        vendor=_vendor(node.gpus, node.gpu_vendor) if node else None,
        driver={**site.versions, **node.versions}.get("driver") if site and node else None,
        torch=image_of_site.torch if image_of_site else None,
        fabric=site.fabric if site else Fabric(),
        libraries=settings.libraries,
    )
    return list(check(required))


def _vendor(gpus: int, vendor: str | None) -> str | None:
    return (vendor or "nvidia") if gpus else None


def _image_path(output: str | None, name: str, site: SiteProfile | None) -> Path:
    """The image file: `output`, or `name` in the folder of the site or here. Raises UsageError for a bad folder."""
    if output is not None:
        image = Path(output).absolute()
        image = image / name if output.endswith("/") or os.path.isdir(image) else image
    else:
        folder = site.containers.folder if site else None
        image = Path(_filled(folder, site) if folder else os.getcwd()) / name
    try:
        make_folder(image.parent)
    except OSError as error:
        raise UsageError(f"cannot create {image.parent}: {error.strerror}", "name another file with -o") from error
    return image


def _filled(text: str, site: SiteProfile | None) -> str:
    """Fill in the names of a path in the profile. Raises UsageError for a name that is unknown outside a job."""
    names = this_machine.names(os.environ)
    try:
        for key, folder in (site.paths if site else {}).items():
            if f"${{paths.{key}}}" in text:
                names[f"paths.{key}"] = plain(interpolate(folder.path, names)) or ""
        path = plain(interpolate(text, names))
    except UnknownName as unknown:
        raise UsageError(f"`${{{unknown.name}}}` in {text} is unknown here", "name a file with -o") from unknown
    if path is None:
        raise UsageError(f"{text} is known only inside a job", "name a file with -o")
    return os.path.expanduser(path)
